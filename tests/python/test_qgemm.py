# SPDX-License-Identifier: Apache-2.0
"""Tests products of quantized matrices: families and layouts, the order of sums, added terms."""

import re
from itertools import permutations, product

import ml_dtypes
import numpy as np
import pytest
from golden import assert_same

import narrowfloat as nf

BF16 = np.dtype(ml_dtypes.bfloat16)
FP16, FP32 = np.dtype(np.float16), np.dtype(np.float32)
# Half the distance of neighbouring numbers, relative to the power of two below them.
UNIT_ROUNDOFF = {FP32: 2.0**-24, FP16: 2.0**-11, BF16: 2.0**-8}

# By layout: whether a is columnwise, whether b is columnwise.
LAYOUTS = {"TN": (False, False), "NN": (False, True), "NT": (True, True)}
# More than one tile each way and more than one block, the last ones partial; even, to be packed.
M, N, K = 70, 134, 166


def family(scheme: str) -> str:
    """Returns the scaling mode, as TransformerEngine's GEMM names it."""
    return re.sub(r"_e\dm\d|_2d|\d+x\d+", "", scheme)


def quantized(scheme: str, lines: int, length: int, columnwise: bool) -> nf.QuantizedTensor:
    """Returns an operand with `lines` lines, in the one direction that the product reads."""
    shape = (length, lines) if columnwise else (lines, length)
    random = np.random.default_rng(lines * length + columnwise)
    x = random.standard_normal(shape) * np.exp2(random.integers(-6, 6, (shape[0], 1)))
    return nf.quantize(x.astype(np.float32), scheme, rowwise=not columnwise, columnwise=columnwise)


def operands(
    a_scheme: str, b_scheme: str, layout: str, shape: tuple[int, int, int] = (M, N, K)
) -> tuple[nf.QuantizedTensor, nf.QuantizedTensor]:
    m, n, k = shape
    a_columnwise, b_columnwise = LAYOUTS[layout]
    return quantized(a_scheme, m, k, a_columnwise), quantized(b_scheme, n, k, b_columnwise)


def lines_of(q: nf.QuantizedTensor) -> np.ndarray:
    """Returns the values of an operand, one line per row."""
    values = q.dequantize(np.float32).astype(np.float64)
    return values if "rowwise_data" in q.buffers else values.T


PAIRS = list(product(nf.schemes(), repeat=2))
OF_ONE_FAMILY = [pair for pair in PAIRS if family(pair[0]) == family(pair[1])]
# The first scheme of each family stands for the others: the rule reads the family alone.
OF_TWO_FAMILIES = list(permutations({family(s): s for s in reversed(nf.schemes())}.values(), 2))


@pytest.mark.parametrize("schemes", OF_TWO_FAMILIES, ids="-".join)
def test_schemes_of_two_families_are_refused(schemes: tuple[str, str]) -> None:
    a, b = operands(*schemes, "TN")
    message = rf"^qgemm: a and b must .* got {' and '.join(schemes)}$"
    with pytest.raises(ValueError, match=message):
        nf.qgemm(a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("schemes", OF_ONE_FAMILY, ids="-".join)
def test_every_pair_of_schemes(schemes: tuple[str, str], layout: str) -> None:
    a, b = operands(*schemes, layout)
    a_lines, b_lines = lines_of(a), lines_of(b)
    exact = a_lines @ b_lines.T
    # Each product passes through fewer than K + 8 roundings of fp32.
    of_sum = (K + 8) * 2.0**-24 * (np.abs(a_lines) @ np.abs(b_lines).T)
    for dtype in UNIT_ROUNDOFF:
        y = nf.qgemm(a, b, layout=layout, dtype=dtype)
        assert y.dtype == dtype and y.shape == (M, N) and y.flags.c_contiguous
        bound = of_sum + UNIT_ROUNDOFF[dtype] * (np.abs(exact) + of_sum)
        off = np.abs(y.astype(np.float64) - exact) - bound
        assert (off <= 0).all(), f"{schemes} {layout} {dtype}: {off.max()} past the bound"


def codes_and_scales(q: nf.QuantizedTensor) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns codes as fp32 and scales as fp64, one line per row, and the codes per scale."""
    direction = "rowwise" if "rowwise_data" in q.buffers else "columnwise"
    codes, scales = (q.buffers[f"{direction}_{key}"] for key in ("data", "scale_inv"))
    element = ml_dtypes.float8_e4m3fn if "e4m3" in q.scheme else ml_dtypes.float8_e5m2
    values = codes.view(element).astype(np.float32)
    if family(q.scheme) == "fp8":
        return values, np.full((len(values), 1), scales[0], np.float64), values.shape[1]
    if direction == "columnwise":
        values, scales = values.T, scales.T
    return values, np.exp2(scales[: len(values)].astype(np.float64) - 127), 32


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "schemes",
    [("fp8_e4m3", "fp8_e5m2"), ("mxfp8_e5m2", "mxfp8_2d_e4m3"), ("mxfp8_2d_e5m2", "mxfp8_e5m2")],
    ids="-".join,
)
def test_the_order_of_sums_is_part_of_the_bytes(schemes: tuple[str, str], layout: str) -> None:
    a, b = operands(*schemes, layout)
    (a_codes, a_scales, slab), (b_codes, b_scales, _) = codes_and_scales(a), codes_and_scales(b)
    sums = np.zeros((M, N))
    for begin in range(0, K, slab):
        dots = np.zeros((M, N), np.float32)
        for k in range(begin, min(begin + slab, K)):
            dots = dots + a_codes[:, k, None] * b_codes[None, :, k]
        block = begin // slab
        sums += dots.astype(np.float64) * (a_scales[:, block, None] * b_scales[None, :, block])
    y = nf.qgemm(a, b, layout=layout)
    assert_same(y, sums.astype(np.float32), f"{schemes} {layout}")
    for dtype in (FP16, BF16):
        with np.errstate(over="ignore"):
            wanted = sums.astype(np.float32).astype(dtype)
        assert_same(nf.qgemm(a, b, layout=layout, dtype=dtype), wanted, f"{schemes} {dtype}")
    for threads in (1, 2, 3, 8):
        assert_same(nf.qgemm(a, b, layout=layout, threads=threads), y, f"{threads} threads")


@pytest.mark.parametrize("scheme", nf.schemes())
def test_a_part_of_a_product_is_the_product_of_parts(scheme: str) -> None:
    random = np.random.default_rng(5)
    x, w = (random.standard_normal((n, K)).astype(np.float32) for n in (384, 256))
    # A scale of the whole tensor must be the same for its parts.
    options = {"amax": 6.0} if "amax_rowwise" in nf.quantize(w, scheme).buffers else {}
    a, b = nf.quantize(x, scheme, **options), nf.quantize(w, scheme, **options)
    whole, transposed = nf.qgemm(a, b), nf.qgemm(b, a)
    for begin, end in [(0, 128), (128, 384), (256, 384)]:  # on the blocks' boundaries
        part = nf.quantize(x[begin:end], scheme, **options)
        assert_same(nf.qgemm(part, b), whole[begin:end], f"{scheme} rows {begin} to {end}")
        assert_same(nf.qgemm(b, part), transposed[:, begin:end], f"{scheme} columns {begin}")


def rounded(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns the value rounded to the type, as fp32 again."""
    return value.astype(dtype).astype(np.float32)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("bias_dtype", [None, FP32, FP16, BF16], ids=str)
@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=str)
@pytest.mark.parametrize("scheme", ["fp8_e4m3", "mxfp8_e4m3"])
def test_what_is_added_and_when_it_rounds(
    scheme: str, dtype: np.dtype, bias_dtype: np.dtype | None, accumulate: bool
) -> None:
    random = np.random.default_rng(3)
    a, b = (nf.quantize(random.standard_normal((n, K)).astype(np.float32), scheme) for n in (M, N))
    wanted = nf.qgemm(a, b)
    options, out = {}, random.standard_normal((M, N)).astype(dtype)
    if bias_dtype is not None:
        options["bias"] = random.standard_normal(N).astype(bias_dtype)
        # docs/numerics.md, "Products": added inside the GEMM if neither type is fp32.
        inside = dtype != FP32 and bias_dtype != FP32
        wanted = wanted if inside else rounded(wanted, dtype)
        wanted = wanted + options["bias"].astype(np.float32)
    if accumulate:
        options |= {"out": out.copy(), "accumulate": True}
        wanted = rounded(wanted, dtype) + out.astype(np.float32)
    y = nf.qgemm(a, b, dtype=dtype, **options)
    assert_same(y, wanted.astype(dtype), f"{scheme} {dtype} bias {bias_dtype}")


def test_shapes() -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 64)).astype(np.float32)
    w = np.random.default_rng(2).standard_normal((32, 64)).astype(np.float32)
    dy = np.random.default_rng(3).standard_normal((2, 3, 5, 32)).astype(np.float32)
    for scheme in ("fp8_e4m3", "mxfp8_e4m3"):
        q, qw, qdy = (nf.quantize(t, scheme, columnwise=True) for t in (x, w, dy))
        flat, flat_dy = (nf.quantize(t.reshape(30, -1), scheme, columnwise=True) for t in (x, dy))
        assert_same(nf.qgemm(q, qw), nf.qgemm(flat, qw), "TN of rank 4")
        assert nf.qgemm(q, qw).shape == (30, 32)
        dgrad = nf.qgemm(qdy, qw, layout="NN")
        assert dgrad.shape == (30, 64)
        assert_same(dgrad, nf.qgemm(flat_dy, qw, layout="NN"), "NN of rank 4")
        wgrad = nf.qgemm(qdy, q, layout="NT")
        assert wgrad.shape == (32, 64)
        assert_same(wgrad, nf.qgemm(flat_dy, flat, layout="NT"), "NT of rank 4")
    scalar = nf.quantize(np.float32(2), "fp8_e4m3", scale=1.0)
    assert nf.qgemm(scalar, scalar).tolist() == [[4.0]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scheme", nf.schemes())
def test_empty_dimensions(scheme: str, layout: str) -> None:
    for shape in [(0, 4, 32), (4, 0, 32), (0, 0, 0)]:
        y = nf.qgemm(*operands(scheme, scheme, layout, shape), layout=layout)
        assert y.shape == shape[:2]
    a, b = operands(scheme, scheme, layout, (4, 6, 0))
    bias, out = np.arange(6, dtype=BF16), np.arange(24, dtype=np.float32).reshape(4, 6)
    assert_same(nf.qgemm(a, b, layout=layout), np.zeros((4, 6), np.float32), "a sum of nothing")
    y = nf.qgemm(a, b, bias=bias, layout=layout)
    assert_same(y, np.tile(bias.astype(np.float32), (4, 1)), "the bias alone")
    y = nf.qgemm(a, b, bias=bias, out=out.copy(), accumulate=True, layout=layout)
    assert_same(y, out + bias.astype(np.float32), "out and the bias")


def from_codes(scheme: str, codes: list[int], scale: object) -> nf.QuantizedTensor:
    """Returns one row of codes under one scale."""
    data = np.array([codes], np.uint8)
    plan = nf.quantize(np.zeros(data.shape, np.float32), scheme).buffers["rowwise_scale_inv"]
    buffers = {"rowwise_data": data, "rowwise_scale_inv": np.full(plan.shape, scale, plan.dtype)}
    return nf.from_buffers(scheme, data.shape, buffers)


def item(a: nf.QuantizedTensor, b: nf.QuantizedTensor) -> np.float32:
    return nf.qgemm(a, b)[0, 0]


# Codes of E5M2: 1, 2**-16, 57344, the infinities and NaN.
ONE, SMALLEST, LARGEST, INFINITY, MINUS_INFINITY, NAN = 0x3C, 0x01, 0x7B, 0x7C, 0xFC, 0x7F


def test_special_codes() -> None:
    ones, zeros = from_codes("fp8_e5m2", [ONE] * 2, 1), from_codes("fp8_e5m2", [0] * 2, 1)
    assert item(from_codes("fp8_e5m2", [INFINITY, ONE], 1), ones) == np.inf
    for codes, other in [
        ([NAN, ONE], ones),
        ([INFINITY, MINUS_INFINITY], ones),
        ([INFINITY, ONE], zeros),
    ]:
        result = item(from_codes("fp8_e5m2", codes, 1), other)
        assert result.view(np.uint32) == 0x7FC00000  # every NaN has these bits
    nan_scale, scale = (from_codes("mxfp8_e5m2", [ONE], scale) for scale in (255, 127))
    assert item(nan_scale, scale).view(np.uint32) == 0x7FC00000
    assert item(scale, scale) == 1


@pytest.mark.parametrize(
    ("code", "a_scale", "b_scale", "wanted"),
    [
        (SMALLEST, 200, 200, 2.0 ** (2 * (73 - 16))),  # the scales' product is 2**146
        (LARGEST, 45, 45, (57344.0 * 2.0**-82) ** 2),  # and here 2**-164
        (SMALLEST, 0, 254, 2.0**-32),  # the code times its scale is 2**-143, subnormal
        (LARGEST, 254, 254, np.inf),
        (SMALLEST, 0, 0, 0.0),
    ],
)
def test_scales_whose_product_leaves_fp32(
    code: int, a_scale: int, b_scale: int, wanted: float
) -> None:
    a, b = (from_codes("mxfp8_e5m2", [code], scale) for scale in (a_scale, b_scale))
    assert item(a, b) == np.float32(wanted)
    # Per tensor, the same numbers as fp32 scales.
    a, b = (from_codes("fp8_e5m2", [code], 2.0 ** (scale - 127)) for scale in (a_scale, b_scale))
    assert item(a, b) == np.float32(wanted)


def test_swizzled_scales_are_read_where_they_lie() -> None:
    random = np.random.default_rng(6)
    a, b = (
        nf.quantize(random.standard_normal((M, K)).astype(np.float32), "mxfp8_e4m3", True, True)
        for _ in range(2)
    )
    y = nf.qgemm(a, b)
    assert_same(nf.qgemm(nf.swizzle(a), nf.swizzle(b)), y, "both swizzled")
    assert_same(nf.qgemm(nf.swizzle(a), b), y, "one swizzled")
    y = nf.qgemm(a, b, layout="NT")
    assert_same(nf.qgemm(a, nf.swizzle(b), layout="NT"), y, "columnwise swizzled")
