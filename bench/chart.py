# SPDX-License-Identifier: Apache-2.0
"""Draws the times of narrowfloat and of other libraries: one row per work, one shared axis."""

from collections.abc import Mapping
from pathlib import Path

# Marker and colour of each library; one that is not listed is grey.
LOOKS = {
    "torchao compiled": ("s", "#8a5cc7"),
    "torch.compile": ("o", "#2a78d6"),
    "JAX jit": ("D", "#c8591a"),
    "torchao eager": ("s", "#c3aee6"),
    "torch eager": ("o", "#9cc3ee"),
    "ml_dtypes": ("^", "#b59a3c"),
    "microxcaling": ("v", "#8c8c86"),
}
OURS_LOOK = ("o", "#1a9c4b")


def draw(works: Mapping[str, Mapping[str, float]], ours: str, name: Path) -> None:
    """Writes NAME.png and NAME.svg. works: milliseconds by library, by title.

    A label shows the time of `ours`; another, at the fastest other library, its ratio to that time.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "narrowfloat"  # the same numbers give the same file
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    figure, axis = pyplot.subplots(figsize=(8.4, 0.36 * len(works) + 1.5))
    drawn: dict[str, object] = {}
    for row, times in enumerate(works.values()):
        own = times[ours]
        axis.plot([own, max(times.values())], [row, row], color="#e3e1db", linewidth=2, zorder=1)
        for label, value in times.items():
            marker, color = OURS_LOOK if label == ours else LOOKS.get(label, ("o", "#8c8c86"))
            size = 80 if label == ours else 42
            dot = axis.scatter(value, row, s=size, marker=marker, color=color, zorder=3)
            drawn.setdefault(label, dot)
        axis.annotate(f"{own:.1f}", (own, row), (-9, 0), ha="right", **BESIDE)
        others = [value for label, value in times.items() if label != ours]
        if others:
            fastest = min(others)
            axis.annotate(f"{fastest / own:.0f}x", (fastest, row), (-8, 0), ha="right", **BESIDE)
    axis.set_yticks(range(len(works)), list(works))
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.margins(x=0.12)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("milliseconds, logarithmic")
    axis.grid(axis="x", color="#eeece7")
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    order = [ours, *(label for label in LOOKS if label in drawn)]
    figure.legend(
        [drawn[label] for label in order], order, loc="upper center", ncols=4, frameon=False
    )
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.65 / figure.get_figheight()))
    for suffix in (".png", ".svg"):
        figure.savefig(name.with_suffix(suffix), dpi=150, metadata=NO_DATE[suffix])
    pyplot.close(figure)


BESIDE = {
    "textcoords": "offset points",
    "va": "center",
    "fontsize": 9,
    "bbox": {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
}
NO_DATE = {".png": None, ".svg": {"Date": None}}
