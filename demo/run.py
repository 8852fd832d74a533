# SPDX-License-Identifier: Apache-2.0
"""Quantizes a real sentence model in every scheme and shows what that costs.

Each scheme: the command line turns the checkpoint into a quantized one, Python loads it, and the
model runs from the dequantized weights. Results go to stdout, progress to stderr.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import narrowfloat as nf
from demo import measure
from demo.checkpoint import WEIGHTS, check_model, model_folder
from demo.model import SentenceModel

# The tool leaves embeddings alone unless told. Half of this small model is one: it is taken along.
INCLUDE = ("--include", "*_embeddings.weight")

PAIRS = (
    ("A man is eating food.", "A man is eating a piece of bread."),
    ("A man is riding a horse.", "A man is riding a white horse on an enclosed ground."),
    ("The girl is carrying a baby.", "Someone holds a small child."),
    ("A monkey is playing drums.", "The stock market fell sharply on Monday."),
)

COLUMNS = (
    ("scheme", 22),
    ("MB", 5),
    ("bits/param", 12),
    ("SQNR dB", 9),
    ("max error", 11),
    ("ms", 7),
    ("x memcpy", 10),
    ("similarity", 12),
    ("moved by", 10),
)


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    scheme: str
    megabytes: float
    bits: float
    errors: measure.Errors
    milliseconds: float
    times_copy: float
    similarities: list[float]

    def cells(self, reference: list[float]) -> Iterator[str]:
        moves = [now - then for now, then in zip(self.similarities, reference, strict=True)]
        yield from (self.scheme, f"{self.megabytes:.1f}", f"{self.bits:.2f}")
        yield from (f"{self.errors.sqnr_db:.1f}", f"{self.errors.largest:.2%}")
        yield from (f"{self.milliseconds:.1f}", f"{self.times_copy:.2f}")
        yield from (f"{self.similarities[0]:.4f}", f"{max(moves, key=abs):+.4f}")


def main() -> int:
    """Prints the tables. Returns the exit code."""
    arguments = parse_arguments()
    folder = model_folder()
    check_model(folder)
    checkpoint = folder / WEIGHTS
    original = floats(nf.load(checkpoint))
    reference = similarities(folder, original)
    show_model(checkpoint, original, reference)

    results = []
    schemes = arguments.schemes or nf.schemes()
    print(line([name for name, _ in COLUMNS]))
    for index, scheme in enumerate(schemes, start=1):
        progress(f"[{index}/{len(schemes)}] {scheme}")
        results.append(run_scheme(folder, original, scheme))
        progress("")
        print(line(results[-1].cells(reference)), flush=True)
    show_legend()
    show_moves(results, reference)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo.run", description=__doc__)
    parser.add_argument("schemes", nargs="*", metavar="SCHEME", help="these only (default: all)")
    return parser.parse_args()


def run_scheme(folder: Path, original: Mapping[str, np.ndarray], scheme: str) -> Result:
    """Quantizes the checkpoint to a file, reads it back, measures."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / f"{scheme}.safetensors"
        quantize_file(folder / WEIGHTS, file, scheme)
        megabytes = file.stat().st_size / 1e6
        loaded = dict(nf.load(file))
        restored = floats(loaded)
    quantized = {n: t for n, t in loaded.items() if isinstance(t, nf.QuantizedTensor)}
    weights = {name: original[name] for name in quantized}
    quantizing, copying = measure.seconds(weights, scheme)
    return Result(
        scheme=scheme,
        megabytes=megabytes,
        bits=measure.bits_per_parameter(quantized.values()),
        errors=measure.errors((original[name], restored[name]) for name in quantized),
        milliseconds=1e3 * quantizing,
        times_copy=quantizing / copying,
        similarities=similarities(folder, restored),
    )


def quantize_file(source: Path, target: Path, scheme: str) -> None:
    """A quantized copy of a checkpoint, made as a user would make it."""
    run_tool("quantize", str(source), str(target), "--scheme", scheme, *INCLUDE)


def run_tool(*arguments: str) -> str:
    """What `narrowfloat` prints. Raises RuntimeError with what it complained of if it fails."""
    command = [str(Path(sys.executable).with_name("narrowfloat")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"demo: {' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def floats(tensors: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Every float tensor as float32; quantized ones are dequantized."""
    arrays = {
        name: tensor.dequantize(np.float32) if isinstance(tensor, nf.QuantizedTensor) else tensor
        for name, tensor in tensors.items()
    }
    return {name: np.asarray(a) for name, a in arrays.items() if a.dtype == np.float32}


def similarities(folder: Path, weights: Mapping[str, np.ndarray]) -> list[float]:
    model = SentenceModel(folder, weights)
    return [model.similarity(one, other) for one, other in PAIRS]


def show_model(path: Path, weights: Mapping[str, np.ndarray], reference: list[float]) -> None:
    count = sum(weight.size for weight in weights.values())
    megabytes = path.stat().st_size / 1e6
    machine = json.loads(run_tool("doctor", "--json"))
    print(f"all-MiniLM-L6-v2: {count / 1e6:.1f} M parameters, {megabytes:.1f} MB in F32")
    print(f"this machine: {machine['cpu']}, {machine['active']} kernels\n")
    for (one, other), value in zip(PAIRS, reference, strict=True):
        print(f"{value:8.4f}  {one} / {other}")
    print()


def show_legend() -> None:
    print(
        "\nbits/param: codes and scales of the quantized matrices; max error: of the largest weight"
        " of the same\nmatrix; ms: quantizing all of them from memory on one thread, x memcpy: over"
        " copying the same F32 bytes;\nsimilarity: of the first pair; moved by: the most of all"
        " pairs. The file holds norms and biases in F32."
    )


def show_moves(results: list[Result], reference: list[float]) -> None:
    """How far every pair moved in every scheme."""
    print("\nhow far each pair moved from F32\n")
    width = COLUMNS[0][1]
    print(f"{'':{width}}" + "".join(f"{value:10.4f}" for value in reference))
    for result in results:
        moves = (now - then for now, then in zip(result.similarities, reference, strict=True))
        print(f"{result.scheme:{width}}" + "".join(f"{move:+10.4f}" for move in moves))


def line(cells: Iterator[str] | list[str]) -> str:
    """The first cell left, the others right."""
    widths = [width for _, width in COLUMNS]
    first, *others = zip(cells, widths, strict=True)
    return f"{first[0]:{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in others)


def progress(text: str) -> None:
    """A line that the next one replaces on a terminal; elsewhere plain lines."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
    elif text:
        sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
