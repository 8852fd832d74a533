# SPDX-License-Identifier: Apache-2.0
"""Quantizes a real sentence model in every scheme and shows the cost.

Each scheme: the command line quantizes the checkpoint, Python loads it, and the model runs with the
dequantized weights. The main numbers are printed to stdout as a table, all numbers are written to a
page, and progress is printed to stderr.
"""

import argparse
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import narrowfloat as nf
from demo import measure, page
from demo.checkpoint import WEIGHTS, check_model, model_folder
from demo.model import SentenceModel
from demo.result import Baseline, Result

# By default the tool skips embeddings. One is half of this small model, so it is included.
INCLUDE = ("--include", "*_embeddings.weight")

PAIRS = (
    ("A man is eating food.", "A man is eating a piece of bread."),
    ("A man is riding a horse.", "A man is riding a white horse on an enclosed ground."),
    ("The girl is carrying a baby.", "Someone holds a small child."),
    ("A monkey is playing drums.", "The stock market fell sharply on Monday."),
)

COLUMNS = (
    ("scheme", 22),
    ("MB", 7),
    ("of F32", 8),
    ("SQNR dB", 9),
    ("largest shift", 15),
)


def main() -> int:
    """Prints the table and its summary, and writes the page. Returns the exit code."""
    arguments = parse_arguments()
    folder = model_folder()
    check_model(folder)
    checkpoint = folder / WEIGHTS
    original = floats(nf.load(checkpoint))
    baseline = Baseline(
        parameters=sum(weight.size for weight in original.values()),
        megabytes=checkpoint.stat().st_size / 1e6,
        machine=json.loads(run_tool("doctor", "--json")),
        similarities=similarities(folder, original),
    )
    show_model(baseline)

    results = []
    schemes = arguments.schemes or nf.schemes()
    print(line([name for name, _ in COLUMNS]))
    for index, scheme in enumerate(schemes, start=1):
        progress(f"[{index}/{len(schemes)}] {scheme}")
        results.append(run_scheme(folder, original, scheme))
        progress("")
        print(line(cells(results[-1], baseline)), flush=True)
    print("\n" + "\n".join(conclusion(results, baseline)))
    arguments.report.write_text(page.render(results, baseline, PAIRS), encoding="utf-8")
    print(f"\n{arguments.report}: every number, error histograms, times, the shift of each pair.")
    return 0


def cells(result: Result, baseline: Baseline) -> list[str]:
    """Returns one line of the table."""
    return [
        result.scheme,
        f"{result.megabytes:.1f}",
        f"{result.megabytes / baseline.megabytes:.0%}",
        f"{result.errors.sqnr_db:.1f}",
        f"{result.largest_shift(baseline):.4f}",
    ]


def conclusion(results: list[Result], baseline: Baseline) -> list[str]:
    """Returns the summary: an explanation, then a line per element format."""
    lines = ["SQNR: signal over quantization noise. Largest shift: of the four similarities.", ""]
    for element in dict.fromkeys(result.element for result in results):
        group = [result for result in results if result.element == element]
        shares = sorted(f"{result.megabytes / baseline.megabytes:.0%}" for result in group)
        shift = max(result.largest_shift(baseline) for result in group)
        lines.append(
            f"{element}: {' to '.join(dict.fromkeys((shares[0], shares[-1])))} of the size; "
            f"no similarity moves by more than {shift:.4f}"
        )
    return lines


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo.run", description=__doc__)
    parser.add_argument("schemes", nargs="*", metavar="SCHEME", help="these only (default: all)")
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="where the page is written (default: report.html)",
    )
    return parser.parse_args()


def run_scheme(folder: Path, original: Mapping[str, np.ndarray], scheme: str) -> Result:
    """Quantizes the checkpoint to a file, reads it again and measures."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / f"{scheme}.safetensors"
        quantize_file(folder / WEIGHTS, file, scheme)
        megabytes = file.stat().st_size / 1e6
        loaded = dict(nf.load(file))
        restored = floats(loaded)
    quantized = {n: t for n, t in loaded.items() if isinstance(t, nf.QuantizedTensor)}
    weights = {name: original[name] for name in quantized}
    quantizing, copying = measure.seconds(weights, scheme)
    pairs = [(original[name], restored[name]) for name in quantized]
    return Result(
        scheme=scheme,
        element=next(row["element"] for row in scheme_rows() if row["name"] == scheme),
        megabytes=megabytes,
        bits=measure.bits_per_parameter(quantized.values()),
        errors=measure.errors(pairs),
        histogram=measure.error_histogram(pairs),
        milliseconds=1e3 * quantizing,
        times_copy=quantizing / copying,
        similarities=similarities(folder, restored),
    )


def quantize_file(source: Path, target: Path, scheme: str) -> None:
    """Quantizes a checkpoint with the command line, as a user does."""
    run_tool("quantize", str(source), str(target), "--scheme", scheme, *INCLUDE)


def run_tool(*arguments: str) -> str:
    """Returns the output of `narrowfloat`. Errors: RuntimeError with its message if it fails."""
    command = [str(Path(sys.executable).with_name("narrowfloat")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"demo: {' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def floats(tensors: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Returns every float tensor as float32; quantized ones are dequantized."""
    arrays = {
        name: tensor.dequantize(np.float32) if isinstance(tensor, nf.QuantizedTensor) else tensor
        for name, tensor in tensors.items()
    }
    return {name: np.asarray(a) for name, a in arrays.items() if a.dtype == np.float32}


def similarities(folder: Path, weights: Mapping[str, np.ndarray]) -> list[float]:
    model = SentenceModel(folder, weights)
    return [model.similarity(one, other) for one, other in PAIRS]


def show_model(baseline: Baseline) -> None:
    print(
        f"all-MiniLM-L6-v2: {baseline.parameters / 1e6:.1f} M parameters, "
        f"{baseline.megabytes:.1f} MB in F32"
    )
    machine = baseline.machine
    print(f"this machine: {machine['cpu']}, {machine['active']} kernels\n")
    for (one, other), value in zip(PAIRS, baseline.similarities, strict=True):
        print(f"{value:8.4f}  {one} / {other}")
    print()


@functools.cache
def scheme_rows() -> list[dict[str, str]]:
    """Returns the list of schemes from the command line."""
    return json.loads(run_tool("schemes", "--json"))["schemes"]


def line(row: list[str]) -> str:
    """Returns a line of the table: the first cell aligned left, the others right."""
    widths = [width for _, width in COLUMNS]
    first, *others = zip(row, widths, strict=True)
    return f"{first[0]:{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in others)


def progress(text: str) -> None:
    """Prints a line, to be replaced by the next one, on a terminal; else prints nothing."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
