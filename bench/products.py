# SPDX-License-Identifier: Apache-2.0
"""Times products of quantized matrices, and PyTorch's products of the same shape, in one run.

usage: python bench/compare.py --products THREADS

Contenders run in turns, and the minimum of all turns counts. The shares are the times of PyTorch's
fp32 and bfloat16 products over the contender's time; 100 % is equally fast.
"""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from block_peers import microxcaling_mxfp8

Shape = tuple[int, int, int]
SHAPES: list[Shape] = [
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 512),
    (64, 4096, 4096),
]
FLOAT32, BFLOAT16 = "torch float32", "torch bfloat16"
# Scheme of the activations, scheme of the weight.
PAIRS = [
    ("fp8_e4m3", "fp8_e4m3"),
    ("fp8_block1x128_e4m3", "fp8_block128x128_e4m3"),
    ("mxfp8_e4m3", "mxfp8_e4m3"),
    ("nvfp4", "nvfp4"),
]

Run = Callable[[], object]


def ours(x: np.ndarray, w: np.ndarray, threads: int) -> Iterator[tuple[str, Run]]:
    import narrowfloat as nf

    for x_scheme, w_scheme in PAIRS:
        a, b = nf.quantize(x, x_scheme), nf.quantize(w, w_scheme)
        out = np.zeros((len(x), len(w)), np.float32)
        name = x_scheme if x_scheme == w_scheme else f"{x_scheme}, {w_scheme}"
        for mode in ("reproducible", "fast"):
            multiply = partial(nf.qgemm, a, b, out=out, mode=mode, threads=threads)
            yield f"{name}, {mode}", multiply


def ours_in_torch(x: np.ndarray, w: np.ndarray, threads: int) -> Iterator[tuple[str, Run]]:
    """Yields fast products with bfloat16 results, which PyTorch multiplies."""
    import narrowfloat.pytorch as nfp
    import torch
    from narrowfloat.pytorch.cpp_extensions import general_gemm

    torch.set_num_threads(threads)

    def fast(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        with nfp.product_mode("fast"):
            general_gemm(a, b, out=out)

    for quantizer in (
        nfp.Float8CurrentScalingQuantizer(nfp.DType.kFloat8E4M3),
        nfp.Float8BlockQuantizer(nfp.DType.kFloat8E4M3, rowwise=True, columnwise=False),
        nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3, columnwise=False),
        nfp.NVFP4Quantizer(columnwise=False),
    ):
        a, b = (quantizer(torch.from_numpy(each)) for each in (w, x))
        out = torch.zeros(len(x), len(w), dtype=torch.bfloat16)
        name = type(quantizer).__name__.removesuffix("Quantizer")
        yield f"{name} in PyTorch, bfloat16 result, fast", partial(fast, a, b, out)


def torch_products(x: np.ndarray, w: np.ndarray, threads: int) -> Iterator[tuple[str, Run]]:
    import torch

    torch.set_num_threads(threads)
    a, b = torch.from_numpy(x), torch.from_numpy(w)
    for dtype in (torch.float32, torch.bfloat16):
        left, right = a.to(dtype), b.to(dtype).T
        out = torch.zeros(len(x), len(w), dtype=dtype)
        yield f"torch {dtype}".replace("torch.", ""), partial(torch.mm, left, right, out=out)
    one = torch.ones(())
    left, right = (tensor.to(torch.float8_e4m3fn) for tensor in (a, b))
    yield (
        "torch._scaled_mm, per tensor",
        partial(torch._scaled_mm, left, right.T, one, one, out_dtype=torch.float32),
    )


def jax_products(x: np.ndarray, w: np.ndarray, _threads: int) -> Iterator[tuple[str, Run]]:
    """Yields narrowfloat's products in JAX, and XLA's product of bfloat16."""
    import jax
    import jax.numpy as jnp
    import narrowfloat.jax as nfj
    from narrowfloat.jax.cpp_extensions import gemm, quantize
    from narrowfloat.jax.quantize import QuantizeLayout, QuantizerFactory, ScalingMode

    dims = ((1,), (1,))
    left, right = (jnp.asarray(each, jnp.bfloat16) for each in (x, w))
    by_xla = jax.jit(
        lambda a, b: jax.lax.dot_general(a, b, (dims, ((), ())), preferred_element_type=jnp.float32)
    )
    yield "XLA bfloat16", lambda: by_xla(left, right).block_until_ready()
    for mode in (
        ScalingMode.CURRENT_TENSOR_SCALING,
        ScalingMode.MXFP8_1D_SCALING,
        ScalingMode.NVFP4_1D_SCALING,
    ):
        dtype = mode.get_compatible_q_dtypes()[0]
        quantizer = QuantizerFactory.create(1, mode, dtype, QuantizeLayout.ROWWISE)
        a, b = quantize(left, quantizer), quantize(right, quantizer)
        for product_mode in ("reproducible", "fast"):
            with nfj.product_mode(product_mode):
                multiply = jax.jit(partial(gemm, contracting_dims=dims, dtype=jnp.float32))
                multiply = multiply.lower(a, b).compile()
            yield (
                f"{mode.name} in JAX, {product_mode}",
                lambda run=multiply, a=a, b=b: run(a, b).block_until_ready(),
            )


def torchao_products(x: np.ndarray, w: np.ndarray, _threads: int) -> Iterator[tuple[str, Run]]:
    import torch
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    left, right = (
        MXTensor.to_mx(torch.from_numpy(tensor).bfloat16(), torch.float8_e4m3fn, 32)
        for tensor in (x, w)
    )
    yield "torchao mxfp8, emulated", lambda: torch.mm(left, right.t())


def microxcaling_products(x: np.ndarray, w: np.ndarray, _threads: int) -> Iterator[tuple[str, Run]]:
    """Yields the product of microxcaling, which quantizes both operands in each call."""
    import torch

    a, b = (torch.from_numpy(tensor).bfloat16() for tensor in (x, w))
    yield (
        "microxcaling's formula, mxfp8",
        lambda: torch.mm(microxcaling_mxfp8(a), microxcaling_mxfp8(b).T),
    )


Maker = Callable[[np.ndarray, np.ndarray, int], Iterator[tuple[str, Run]]]
# Separate tables: JAX's threads stay active after a call, and would slow the next contender.
TABLES: list[list[Maker]] = [
    [torch_products, ours, ours_in_torch, torchao_products, microxcaling_products],
    [torch_products, jax_products],
]


def contenders(shape: Shape, threads: int, makers: list[Maker]) -> tuple[dict[str, Run], list[str]]:
    """Returns the products that can run here, and one line for each absent library."""
    m, n, k = shape
    random = np.random.default_rng(0)
    x, w = (random.standard_normal((lines, k)).astype(np.float32) for lines in (m, n))
    found: dict[str, Run] = {}
    absent = []
    for maker in makers:
        try:
            found.update(maker(x, w, threads))
        except ImportError as error:
            absent.append(f"absent: {error}")
    return found, absent


def measure(runs: dict[str, Run], repetitions: int) -> tuple[dict[str, float], dict[str, str]]:
    """Returns the seconds by name, and the errors of the contenders that fail, by name."""
    seconds = dict.fromkeys(runs, float("inf"))
    failed: dict[str, str] = {}
    for _ in range(repetitions):
        for name in [name for name in runs if name not in failed]:
            start = time.perf_counter()
            try:
                runs[name]()
            except (RuntimeError, NotImplementedError) as error:
                failed[name] = str(error).splitlines()[0]
                continue
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return {name: best for name, best in seconds.items() if name not in failed}, failed


def print_products(threads: int, repetitions: int) -> None:
    """Prints tables for each shape: GFLOP/s, and shares of PyTorch's products."""
    # XLA starts one thread per processor.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    for makers in TABLES:
        for shape in SHAPES:
            print_table(shape, threads, repetitions, makers)


def print_table(shape: Shape, threads: int, repetitions: int, makers: list[Maker]) -> None:
    """Prints the products of one shape."""
    runs, absent = contenders(shape, threads, makers)
    seconds, failed = measure(runs, repetitions)
    work = 2 * np.prod(shape, dtype=np.float64)
    print(f"\n{'x'.join(map(str, shape))}, {threads} threads")
    print(f"| product | GFLOP/s | of {FLOAT32} | of {BFLOAT16} |\n| --- | --- | --- | --- |")
    for name in runs:
        if name in seconds:
            shares = [100 * seconds[each] / seconds[name] for each in (FLOAT32, BFLOAT16)]
            rate = work / seconds[name] / 1e9
            print(f"| {name} | {rate:.0f} | {shares[0]:.0f} % | {shares[1]:.0f} % |")
    print(*absent, *(f"failed: {name}: {why}" for name, why in failed.items()), sep="\n")
