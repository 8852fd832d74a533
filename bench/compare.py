# SPDX-License-Identifier: Apache-2.0
"""Measures narrowfloat, the memory and other libraries on the same tensor, in one run.

usage: python bench/compare.py [--rows R] [--cols C] [--repetitions N] [--core-bench PATH]
                               [--json FILE] [--chart NAME] [--work WORD ...]
       python bench/compare.py --products THREADS [--repetitions N]

One thread on one processor. Contenders write into memory that is already allocated, if their API
allows; they run in turns, and the minimum of all turns counts. A library that cannot be imported is
listed as absent. `share` is the time of a stream of the same bytes over the contender's time
(core_bench measures the stream, before and after); `x` is the time over narrowfloat's; `bytes` is
whether the codes equal narrowfloat's.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import chart
import numpy as np
from block_peers import (
    BLOCK_WORKS,
    block_kernel,
    block_title,
    jax_block_functions,
    microxcaling_mxfp8,
    torch_block_functions,
)
from products import print_products

ROOT = Path(__file__).resolve().parents[1]
CORE_BENCH = ROOT / "build/release/bench/core_bench"
OURS = "narrowfloat"
TURN_SECONDS = 0.1  # allows several calls: the first one misses the caches

# Limits all libraries to one processor, before they start threads.
os.environ.update(
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    JAX_PLATFORMS="cpu",
)


@dataclass
class Work:
    """A work to measure. kernel: its name in core_bench."""

    title: str
    kernel: str
    contenders: dict[str, "Contender"] = field(default_factory=dict)


@dataclass
class Contender:
    run: Callable[[], object]
    result: Callable[[], bytes] | None = None  # codes, to compare; None: not comparable
    seconds: float = math.inf
    equal: bool | None = None

    def take_turn(self) -> None:
        end = time.perf_counter() + TURN_SECONDS
        while True:
            start = time.perf_counter()
            self.run()
            now = time.perf_counter()
            self.seconds = min(self.seconds, now - start)
            if now >= end:
                return


@dataclass
class Tensors:
    """A Gaussian bfloat16 tensor for all contenders, quantized by narrowfloat."""

    values: np.ndarray  # ml_dtypes.bfloat16
    fp8: object  # narrowfloat.QuantizedTensor
    mxfp8: object


def codes_of(array: object) -> bytes:
    return np.ascontiguousarray(np.asarray(array)).view(np.uint8).tobytes()


# The function of each library adds its contenders to the works, or raises ImportError if absent.


def add_ours(works: dict[str, Work], tensors: Tensors) -> None:
    import narrowfloat as nf

    for name, scheme, tensor in (
        ("current", "fp8_e4m3", tensors.fp8),
        ("mxfp8", "mxfp8_e4m3", tensors.mxfp8),
    ):
        quantize = partial(nf.quantize, tensors.values, scheme, out=tensor, threads=1)
        codes = tensor.buffers["rowwise_data"]
        works[name].contenders[OURS] = Contender(quantize, partial(codes_of, codes))
    for name, tensor in (("dequantize fp8", tensors.fp8), ("dequantize mxfp8", tensors.mxfp8)):
        out = np.zeros_like(tensors.values)
        dequantize = partial(nf.dequantize, tensor, out=out, threads=1)
        works[name].contenders[OURS] = Contender(dequantize, partial(codes_of, out))
    for name, (scheme, rowwise, block_options) in BLOCK_WORKS.items():
        options = {"rowwise": rowwise, "columnwise": not rowwise, "threads": 1, **block_options}
        tensor = nf.quantize(tensors.values, scheme, **options)
        quantize = partial(nf.quantize, tensors.values, scheme, out=tensor, **options)
        codes = tensor.buffers["rowwise_data" if rowwise else "columnwise_data"]
        works[name].contenders[OURS] = Contender(quantize, partial(codes_of, codes))


def add_ml_dtypes(works: dict[str, Work], tensors: Tensors) -> None:
    import ml_dtypes

    x = tensors.values
    largest = float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)
    kept = {}

    def current() -> None:
        wide = x.astype(np.float32)
        scale = np.float32(largest) / np.abs(wide).max()
        kept["codes"] = (wide * scale).astype(ml_dtypes.float8_e4m3fn)

    works["current"].contenders["ml_dtypes"] = Contender(current, lambda: codes_of(kept["codes"]))


def torch_functions() -> dict[str, Callable]:
    """Returns the plain PyTorch code of each work."""
    import torch

    fp8 = torch.float8_e4m3fn
    largest = torch.finfo(fp8).max

    def current(x):
        scale = largest / x.abs().max().float()
        return (x.float() * scale).clamp(-largest, largest).to(fp8), 1 / scale

    def mxfp8(x):
        blocks = x.view(-1, x.shape[-1] // 32, 32).float()
        quotient = blocks.abs().amax(-1, keepdim=True) * (1 / largest)
        mantissa, exponent = torch.frexp(quotient)
        power = exponent - (mantissa == 0.5).int()  # smallest power of two >= the quotient
        power = power.clamp(-127, 127)
        codes = torch.ldexp(blocks, -power).clamp(-largest, largest).to(fp8)
        return codes.view(x.shape), (power + 127).to(torch.uint8)

    def dequantize_fp8(codes, scale_inv):
        return (codes.float() * scale_inv).bfloat16()

    def dequantize_mxfp8(codes, exponents):
        blocks = codes.view(-1, codes.shape[-1] // 32, 32).float()
        scale = torch.exp2(exponents.float() - 127).view(-1, codes.shape[-1] // 32, 1)
        return (blocks * scale).bfloat16().view(codes.shape)

    return {
        "current": current,
        "mxfp8": mxfp8,
        "dequantize fp8": dequantize_fp8,
        "dequantize mxfp8": dequantize_mxfp8,
        **torch_block_functions(),
    }


def torch_inputs(tensors: Tensors) -> dict[str, tuple]:
    import torch

    fp8 = torch.float8_e4m3fn
    x = torch.from_numpy(tensors.values.view(np.int16)).view(torch.bfloat16)
    rows, blocks = x.shape[0], x.shape[1] // 32
    codes = {
        name: torch.from_numpy(np.asarray(q.buffers["rowwise_data"]).view(np.uint8)).view(fp8)
        for name, q in (("fp8", tensors.fp8), ("mxfp8", tensors.mxfp8))
    }
    scale_inv = torch.from_numpy(np.asarray(tensors.fp8.buffers["rowwise_scale_inv"]))
    stored = np.asarray(tensors.mxfp8.buffers["rowwise_scale_inv"]).view(np.uint8)
    exponents = torch.from_numpy(np.ascontiguousarray(stored[:rows, :blocks]))
    return {
        "current": (x,),
        "mxfp8": (x,),
        "dequantize fp8": (codes["fp8"], scale_inv),
        "dequantize mxfp8": (codes["mxfp8"], exponents),
        **{name: (x,) for name in BLOCK_WORKS},
    }


def add_torch(works: dict[str, Work], tensors: Tensors) -> None:
    import torch

    torch.set_num_threads(1)
    inputs = torch_inputs(tensors)
    for name, function in torch_functions().items():
        for label, callee in (
            ("torch eager", function),
            ("torch.compile", torch.compile(function)),
        ):
            add_torch_contender(works[name], label, callee, inputs[name])


def add_torch_contender(work: Work, label: str, callee: Callable, inputs: tuple) -> None:
    import torch

    kept = {}

    def run() -> None:
        with torch.no_grad():
            kept["result"] = callee(*inputs)

    def result() -> bytes:
        first = kept["result"][0] if isinstance(kept["result"], tuple) else kept["result"]
        return codes_of(first.contiguous().view(torch.uint8).numpy())

    work.contenders[label] = Contender(run, result)


def add_torchao(works: dict[str, Work], tensors: Tensors) -> None:
    import torch
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    def mxfp8(x):
        scales, codes = to_mx(x, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
        return codes, scales

    inputs = torch_inputs(tensors)["mxfp8"]
    add_torch_contender(works["mxfp8"], "torchao eager", mxfp8, inputs)
    add_torch_contender(works["mxfp8"], "torchao compiled", torch.compile(mxfp8), inputs)


def add_microxcaling(works: dict[str, Work], tensors: Tensors) -> None:
    inputs = torch_inputs(tensors)["mxfp8"]
    add_torch_contender(works["mxfp8"], "microxcaling", microxcaling_mxfp8, inputs)
    works["mxfp8"].contenders["microxcaling"].result = None


def add_jax(works: dict[str, Work], tensors: Tensors) -> None:
    import jax
    import jax.numpy as jnp

    fp8 = jnp.float8_e4m3fn
    largest = jnp.float32(jnp.finfo(fp8).max)

    def current(x):
        wide = x.astype(jnp.float32)
        scale = largest / jnp.abs(wide).max()
        return (wide * scale).astype(fp8), 1 / scale

    def mxfp8(x):
        blocks = x.reshape(-1, x.shape[-1] // 32, 32).astype(jnp.float32)
        mantissa, exponent = jnp.frexp(jnp.abs(blocks).max(-1, keepdims=True) * (1 / largest))
        power = jnp.clip(exponent - (mantissa == 0.5), -127, 127)
        return jnp.ldexp(blocks, -power).astype(fp8).reshape(x.shape), power

    def dequantize_fp8(codes, scale_inv):
        return (codes.astype(jnp.float32) * scale_inv).astype(jnp.bfloat16)

    x = jnp.asarray(tensors.values)
    codes = jnp.asarray(np.asarray(tensors.fp8.buffers["rowwise_data"]))
    scale_inv = jnp.asarray(np.asarray(tensors.fp8.buffers["rowwise_scale_inv"]))
    for name, function, inputs in (
        ("current", current, (x,)),
        ("mxfp8", mxfp8, (x,)),
        ("dequantize fp8", dequantize_fp8, (codes, scale_inv)),
        *((name, function, (x,)) for name, function in jax_block_functions().items()),
    ):
        add_jax_contender(works[name], jax.jit(function), inputs)


def add_jax_contender(work: Work, compiled: Callable, inputs: tuple) -> None:
    import jax

    kept = {}

    def run() -> None:
        kept["result"] = jax.block_until_ready(compiled(*inputs))

    def result() -> bytes:
        return codes_of(jax.tree.leaves(kept["result"])[0])

    work.contenders["JAX jit"] = Contender(run, result)


PEERS = {
    "ml_dtypes": add_ml_dtypes,
    "torch": add_torch,
    "torchao": add_torchao,
    "microxcaling": add_microxcaling,
    "JAX": add_jax,
}


def make_tensors(rows: int, cols: int) -> Tensors:
    import ml_dtypes

    import narrowfloat as nf

    random = np.random.default_rng(1)
    values = np.empty((rows, cols), ml_dtypes.bfloat16)
    for row in range(0, rows, 256):  # in parts: the fp32 values need twice the memory
        part = values[row : row + 256]
        part[...] = random.standard_normal(part.shape, np.float32).astype(ml_dtypes.bfloat16)
    return Tensors(values, nf.quantize(values, "fp8_e4m3"), nf.quantize(values, "mxfp8_e4m3"))


def make_works() -> dict[str, Work]:
    return {
        "current": Work("per-tensor E4M3, current scaling", "quantize(current) fp8_e4m3 rowwise"),
        "mxfp8": Work("MXFP8 E4M3, rowwise", "quantize mxfp8_e4m3 rowwise"),
        "dequantize fp8": Work("dequantize E4M3 to bf16", "dequantize fp8_e4m3 rowwise"),
        "dequantize mxfp8": Work("dequantize MXFP8 to bf16", "dequantize mxfp8_e4m3 rowwise"),
        **{name: Work(block_title(name), block_kernel(name)) for name in BLOCK_WORKS},
    }


def add_peers(works: dict[str, Work], tensors: Tensors) -> list[str]:
    """Adds every installed library. Returns the absent ones, with the reason."""
    absent = []
    for peer, add in PEERS.items():
        try:
            add(works, tensors)
        except ImportError as error:
            absent.append(f"{peer} ({error})")
    return absent


def measure(works: dict[str, Work], repetitions: int) -> list[str]:
    """Measures the contenders in turns. Returns the failed ones, with the reason."""
    failed = []
    for work in works.values():
        for label in list(work.contenders):
            try:
                work.contenders[label].run()  # compiles, and allocates memory
            except Exception as error:  # any error of a library is its result
                failed.append(f"{label}, {work.title}: {type(error).__name__}: {error}"[:200])
                del work.contenders[label]
    turns = [contender for work in works.values() for contender in work.contenders.values()]
    for turn in range(repetitions):
        print(f"\rturn {turn + 1} of {repetitions}", end="", file=sys.stderr, flush=True)
        for contender in turns:
            contender.take_turn()
    print(file=sys.stderr)
    for work in works.values():
        ours = work.contenders[OURS].result()
        for contender in work.contenders.values():
            if contender.result is not None:
                contender.equal = contender.result() == ours
    return failed


def streams(core_bench: Path, rows: int, cols: int) -> dict[str, dict]:
    """Returns core_bench's results for this machine's best kernel table, by kernel."""
    command = [core_bench, f"--rows={rows}", f"--cols={cols}", "--filter=bfloat16", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, dict] = {}
    for row in json.loads(done.stdout)["kernels"]:
        name = row["kernel"].removesuffix(" bfloat16")
        found.setdefault(name, row)  # the best table comes first
    return found


def best_of(first: dict[str, dict], second: dict[str, dict]) -> dict[str, dict]:
    """Returns the minimum times of kernel and stream for each row."""
    best = {}
    for name, row in first.items():
        other = second[name]
        merged = dict(row)
        for key in ("ms", "stream_ms"):
            merged[key] = min(row[key], other[key])
        merged["share"] = merged["stream_ms"] / merged["ms"]
        best[name] = merged
    return best


def machine() -> dict[str, str]:
    import narrowfloat as nf

    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return {"cpu": model, "narrowfloat": nf.__version__, "commit": commit.stdout.strip()}


def print_tables(works: dict[str, Work], core: dict[str, dict]) -> None:
    print(f"{'kernel, C++, bfloat16':<48} {'ms':>8} {'stream ms':>10} {'share':>6}")
    for name, row in core.items():
        print(f"{name:<48} {row['ms']:8.2f} {row['stream_ms']:10.2f} {row['share']:6.0%}")
    for work in works.values():
        stream = core[work.kernel]["stream_ms"]
        ours = work.contenders[OURS].seconds
        print(f"\n{work.title:<44} {'ms':>8} {'share':>6} {'x':>6}  bytes")
        for label, contender in sorted(work.contenders.items(), key=lambda item: item[1].seconds):
            equal = {True: "equal", False: "differ", None: "-"}[contender.equal]
            ms, times = contender.seconds * 1e3, contender.seconds / ours
            print(f"  {label:<42} {ms:8.2f} {stream / ms:6.0%} {times:6.1f}  {equal}")


def as_json(works: dict[str, Work], core: dict[str, dict], absent: list[str], shape: list) -> dict:
    contenders = [
        {"work": work.title, "contender": label, "ms": c.seconds * 1e3, "equal": c.equal}
        for work in works.values()
        for label, c in work.contenders.items()
    ]
    return {
        "machine": machine(),
        "shape": shape,
        "kernels": list(core.values()),
        "contenders": contenders,
        "absent": absent,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=8192, help="a multiple of 128")
    parser.add_argument("--cols", type=int, default=4096, help="a multiple of 1024")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--core-bench", type=Path, default=CORE_BENCH)
    parser.add_argument("--json", type=Path, help="writes everything measured")
    parser.add_argument("--chart", type=Path, help="writes NAME.png and NAME.svg")
    parser.add_argument("--work", nargs="+", choices=list(make_works()), help="only these")
    parser.add_argument(
        "--products", type=int, metavar="THREADS", help="products only (products.py)"
    )
    options = parser.parse_args()
    if options.products:
        return print_products(options.products, options.repetitions)
    if not options.core_bench.exists():
        sys.exit(f"error: compare: no {options.core_bench}; `make build` makes it")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    tensors = make_tensors(options.rows, options.cols)
    works = make_works()
    add_ours(works, tensors)
    absent = add_peers(works, tensors)
    if options.work:
        works = {name: work for name, work in works.items() if name in options.work}
    before = streams(options.core_bench, options.rows, options.cols)
    failed = measure(works, options.repetitions)
    core = best_of(before, streams(options.core_bench, options.rows, options.cols))
    print(f"{machine()}, {options.rows}x{options.cols} bfloat16, one thread\n")
    print_tables(works, core)
    for line in absent:
        print(f"absent: {line}")
    for line in failed:
        print(f"failed: {line}")
    if options.json:
        result = as_json(works, core, absent, [options.rows, options.cols])
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.chart:
        times = {
            work.title: {label: c.seconds * 1e3 for label, c in work.contenders.items()}
            for work in works.values()
        }
        chart.draw(times, OURS, options.chart)


if __name__ == "__main__":
    main()
