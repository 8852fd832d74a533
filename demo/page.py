# SPDX-License-Identifier: Apache-2.0
"""The demo's page: one HTML file without scripts or external files, in light and dark."""

from collections.abc import Sequence
from html import escape

from demo.measure import EXACT_BELOW
from demo.result import Baseline, Result

STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #1b1b1a; --soft: #5d5c58; --rule: #dedcd6;
  --e4m3: #2a78d6; --e5m2: #1a9c74; --e2m1: #c8591a; --p0: #2a78d6; --p1: #1a9c74; --p2: #c8591a;
  --p3: #8a5cc7; }
@media (prefers-color-scheme: dark) { :root { --page: #1a1a19; --ink: #f1f0ec; --soft: #a5a39b;
  --rule: #3a3936; --e4m3: #5b9be6; --e5m2: #35b68c; --e2m1: #e07b3f; --p0: #5b9be6; --p1: #35b68c;
  --p2: #e07b3f; --p3: #a984dd; } }
body { background: var(--page); color: var(--ink); margin: 0;
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--rule);
  font-variant-numeric: tabular-nums; }
td { white-space: nowrap; }
th { font-weight: 600; vertical-align: bottom; line-height: 1.25; }
th:first-child, td:first-child { text-align: left; }
svg { display: block; max-width: 100%; height: auto; } text { fill: var(--ink); font-size: 12px; }
text.soft { fill: var(--soft); } line { stroke: var(--rule); }
.cells { display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: 1rem; }
.cells h3 { font-size: .85rem; font-weight: 600; margin: 0 0 .2rem; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .4rem 0; }
.key i { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%;
  margin-right: .4rem; }
"""

Pairs = Sequence[tuple[str, str]]
HALF_TICKS = 3  # ticks of the axis of shifts, on each side of zero


def render(results: Sequence[Result], baseline: Baseline, pairs: Pairs) -> str:
    """Returns the page."""
    machine = f"{baseline.machine['cpu']}, {baseline.machine['active']} kernels"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>narrowfloat: one model in every scheme</title><style>{STYLE}</style></head><body><main>
<h1>One sentence model in every scheme</h1>
<p class="soft">all-MiniLM-L6-v2, {baseline.parameters / 1e6:.1f} M parameters,
{baseline.megabytes:.1f} MB in F32; {escape(machine)}</p>
<h2>Numbers</h2>
{table(results, baseline)}
<h2>Shift of each similarity</h2>
<p class="soft">Cosine similarity of two sentences from quantized weights, less that from F32.</p>
{key(pairs, baseline)}
{shifts_figure(results, baseline)}
<h2>Relative error of the weights</h2>
<p class="soft">Share of weights per octave of |error| / |weight|. The first bar holds errors below
2<sup>{EXACT_BELOW}</sup>, the last one those of 1 and more: weights that become zero.</p>
<div class="cells">{histograms(results)}</div>
</main></body></html>
"""


def table(results: Sequence[Result], baseline: Baseline) -> str:
    header = (
        "scheme",
        "MB",
        "of F32",
        "bits per weight",
        "SQNR dB",
        "largest error",
        "largest shift",
        "ms",
        "times memcpy",
    )
    rows = [
        (
            result.scheme,
            f"{result.megabytes:.1f}",
            f"{result.megabytes / baseline.megabytes:.0%}",
            f"{result.bits:.2f}",
            f"{result.errors.sqnr_db:.1f}",
            f"{result.errors.largest:.2%}",
            f"{result.largest_shift(baseline):.4f}",
            f"{result.milliseconds:.1f}",
            f"{result.times_copy:.2f}",
        )
        for result in results
    ]
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        '</div><p class="soft">Bits per weight: codes and scales of the quantized matrices; norms '
        "and biases stay in F32. Largest error: of the largest weight of the same matrix. "
        "ms: quantizing all matrices from memory on one thread; times memcpy: over copying the "
        "same bytes.</p>"
    )


def key(pairs: Pairs, baseline: Baseline) -> str:
    """Returns the names of the pairs with their colours."""
    entries = (
        f'<span><i style="background: var(--p{index})"></i>{escape(one)} / {escape(other)} '
        f'<span class="soft">{value:.4f}</span></span>'
        for index, ((one, other), value) in enumerate(
            zip(pairs, baseline.similarities, strict=True)
        )
    )
    return f'<div class="key">{"".join(entries)}</div>'


def shifts_figure(results: Sequence[Result], baseline: Baseline) -> str:
    """Returns one row per scheme, one dot per pair, on a shared axis."""
    left, right, row, top = 190, 30, 24, 10
    width = 860
    limit = max(result.largest_shift(baseline) for result in results)
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.5, 1.0) if HALF_TICKS * s >= limit)
    ticks = [step * tick for tick in range(-HALF_TICKS, HALF_TICKS + 1)]
    bottom = top + row * len(results)

    def x(shift: float) -> float:
        return left + (shift / (2 * HALF_TICKS * step) + 0.5) * (width - left - right)

    parts = [
        f'<line x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{top}" y2="{bottom}"/>'
        f'<text class="soft" x="{x(t):.1f}" y="{bottom + 16}" text-anchor="middle">'
        f"{t:+.2f}</text>"
        for t in ticks
    ]
    for index, result in enumerate(results):
        y = top + row * (index + 0.5)
        parts.append(f'<text x="0" y="{y + 4:.1f}">{escape(result.scheme)}</text>')
        parts.extend(
            f'<circle cx="{x(shift):.1f}" cy="{y:.1f}" r="5" style="fill: var(--p{pair})">'
            f"<title>{result.scheme}: {shift:+.4f}</title></circle>"
            for pair, shift in enumerate(result.shifts(baseline))
        )
    return (
        f'<div class="scroll"><svg viewBox="0 0 {width} {bottom + 24}" width="{width}" role="img" '
        f'aria-label="Shift of four similarities in each scheme">{"".join(parts)}</svg></div>'
    )


def histograms(results: Sequence[Result]) -> str:
    """Returns one small chart per scheme, all on one scale."""
    highest = max(max(result.histogram) for result in results)
    return "".join(histogram_cell(result, highest) for result in results)


def histogram_cell(result: Result, highest: float) -> str:
    width, height, base = 208, 90, 74
    bar = width / len(result.histogram)
    bars = "".join(
        f'<rect x="{index * bar + 1:.1f}" width="{bar - 2:.1f}" '
        f'y="{base * (1 - share / highest):.1f}" '
        f'height="{base * share / highest:.1f}" style="fill: var(--{result.element})">'
        f"<title>{share:.2%}</title></rect>"
        for index, share in enumerate(result.histogram)
    )
    labels = "".join(
        f'<text class="soft" x="{place:.1f}" y="{height - 2}" text-anchor="{anchor}">{text}</text>'
        for place, anchor, text in (
            (0, "start", "exact"),
            ((-EXACT_BELOW / 2 + 1) * bar, "middle", f"2^{EXACT_BELOW // 2}"),
            (width, "end", "1"),
        )
    )
    return (
        f"<div><h3>{escape(result.scheme)}</h3>"
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="Errors of {escape(result.scheme)}">{bars}'
        f'<line x1="0" x2="{width}" y1="{base}" y2="{base}"/>{labels}</svg></div>'
    )
