# SPDX-License-Identifier: Apache-2.0
"""The figure of docs/debug.md: the results of demo.debug_hunt."""

from pathlib import Path

Curves = dict[str, list[float]]
Statistics = dict[str, list[tuple[int, float]]]


def plot(curves: Curves, statistics: Statistics, file: Path) -> None:
    """Draws losses by step on the left, the amax of each layer's activation on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for name, losses in curves.items():
        left.plot(losses, label=name)
    room_for_legend = 1.4 * max(max(losses) for losses in curves.values())
    left.set(xlabel="step", ylabel="mean squared error", ylim=(0, room_for_legend))
    left.legend(fontsize="small", loc="upper right")
    ends = "_activation_cur_amax"
    for name in (name for name in statistics if name.endswith(ends)):
        layer = name.removesuffix(ends)
        steps, values = zip(*statistics[name], strict=True)
        right.plot(steps, values, marker=".", label=layer)
    right.set(xlabel="step", ylabel="largest magnitude of the activation", ylim=(0, None))
    right.legend(fontsize="small", loc="center right")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=80)
