# SPDX-License-Identifier: Apache-2.0
"""Draws the loss curves of training runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

WINDOW = 10  # number of steps averaged for a point


def smooth(losses: Sequence[float]) -> list[float]:
    """Returns means of the last WINDOW losses; of fewer losses at the beginning."""
    means = []
    for end in range(1, len(losses) + 1):
        last = losses[max(0, end - WINDOW) : end]
        means.append(sum(last) / len(last))
    return means


def draw(curves: Mapping[str, Sequence[float]], stem: Path) -> list[Path]:
    """Draws one curve per run to STEM.png and STEM.svg, and the difference from bf16 below.

    Requires: matplotlib. The lower panel needs a run named bf16.
    """
    import matplotlib

    matplotlib.use("agg")
    # Keeps text as text, and ids equal in all runs.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "loss"})
    from matplotlib import pyplot

    smoothed = {name: smooth(losses) for name, losses in curves.items()}
    figure, (upper, lower) = pyplot.subplots(
        2, 1, figsize=(8, 6), height_ratios=(3, 2), sharex=True, layout="constrained"
    )
    for name, losses in smoothed.items():
        upper.plot(range(1, len(losses) + 1), losses, label=name, linewidth=1.2)
        if "bf16" in smoothed:
            pairs = zip(losses, smoothed["bf16"], strict=False)
            differences = [loss - other for loss, other in pairs]
            lower.plot(range(1, len(differences) + 1), differences, linewidth=1.2)
    upper.set_ylabel("training loss, nats per character")
    upper.legend(ncols=2, frameon=False)
    lower.set_ylabel("difference from bf16")
    lower.set_xlabel(f"step (means of {WINDOW})")
    lower.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        # No date: the same curves give the same bytes.
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=110, metadata=metadata)
    pyplot.close(figure)
    return paths
