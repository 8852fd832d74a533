# SPDX-License-Identifier: Apache-2.0
"""Tests the NVFP4 reference: recorded bytes, products, usages."""

import pytest
import torch
from golden import Case, cases
from narrowfloat.pytorch.cpp_extensions.operands import is_scheme
from narrowfloat.pytorch.custom_recipes.gemm import GEMMType
from narrowfloat.pytorch.custom_recipes.nvfp4_blocks import NVFP4Blocks, apply_rht
from narrowfloat.pytorch.custom_recipes.reference_nvfp4 import (
    NVFP4QuantizerRef,
    NVFP4TensorRef,
    nvfp4_ref_rht_2d_factory,
)
from narrowfloat.pytorch.custom_recipes.reference_utils import (
    Fp4Formats,
    cast_from_fp4x2,
    cast_to_fp4x2,
)
from narrowfloat.pytorch.quantization import QuantizerRole
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer
from test_golden_gemm import assert_within
from torch_golden import FLOATS, assert_tensor, bytes_of, tensor_of

# A case with fp32 sums in the recorder's order, which differ from the exact sums.
OTHER_SUMS = "nv/rht_normal_fp32_sign"
RECORDED = [case for case in cases("nv") if case.name != OTHER_SUMS]


def quantizer_of(case: Case) -> NVFP4QuantizerRef:
    params = case.params
    return NVFP4QuantizerRef(
        Fp4Formats.E2M1,
        columnwise=params["columnwise"],
        quant_tile_shape=tuple(params["tile"]),
        row_scaled_nvfp4=params["row_scaled"],
        nvfp4_use_4over6=params["use_4over6"],
        nvfp4_e4m3_max=params["e4m3_max"],
        nvfp4_4over6_err_mode=params["err_mode"] or "MAE",
        nvfp4_4over6_err_use_fast_math=params["err_use_fast_math"],
        with_rht=params["with_rht"],
        with_random_sign_mask=params["with_random_sign_mask"],
    )


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case.name)
def test_recorded(case: Case) -> None:
    q = quantizer_of(case).quantize(tensor_of(case["x"]))
    for name, tensor in (
        ("amax", q.global_amax_row),
        ("scale_inv", q.scale),
        ("data", q.data),
        ("amax_t", q.global_amax_col),
        ("scale_inv_t", q.scale_t),
        ("data_t", q.data_t),
    ):
        assert (name in case) == (tensor is not None), name
        if tensor is not None:
            assert_tensor(tensor, case[name], f"{case.name} {name}")
            assert tensor.shape == case[name].shape


@pytest.mark.parametrize(
    "case", [case for case in RECORDED if case.dequantized], ids=lambda case: case.name
)
def test_recorded_values(case: Case) -> None:
    q = quantizer_of(case).quantize(tensor_of(case["x"]))
    for name, expected in case.dequantized.items():
        assert_tensor(q.dequantize(FLOATS[name]), expected, f"{case.name} dequant.{name}")


def test_all_recorded_cases_run() -> None:
    assert len(RECORDED) == 135


@pytest.mark.parametrize("case", list(cases("rht")), ids=lambda case: case.name)
def test_recorded_transform(case: Case) -> None:
    y = apply_rht(tensor_of(case["x"]), case.params["sign_mask"] != 0)
    # One rounding of the exact sum, which binary64 represents.
    want = torch.from_numpy(case["exact.fp64"].copy()).to(y.dtype)
    assert_tensor(y, want, case.name)


def test_codes_round_to_nearest_even_and_pack_the_even_item_low() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor(
        [[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, -0.3, -0.1, inf, -inf, nan, -0.0]]
    )
    codes = [0, 2, 2, 4, 4, 6, 6, 7, 9, 8, 7, 15, 0, 0]
    packed = cast_to_fp4x2(x)
    assert packed.tolist() == [
        [lo + 16 * hi for lo, hi in zip(codes[::2], codes[1::2], strict=True)]
    ]
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    both = torch.tensor(values + [-v for v in values])
    every = torch.arange(256, dtype=torch.uint8)
    decoded = cast_from_fp4x2(every[None])[0]
    assert_tensor(decoded[0::2], both[every.long() % 16], "low half")
    assert_tensor(decoded[1::2], both[every.long() // 16], "high half")
    assert_tensor(cast_to_fp4x2(decoded)[(every % 16 != 8) & (every // 16 != 8)],
                  every[(every % 16 != 8) & (every // 16 != 8)], "again")  # fmt: skip


def test_mxfp4_blocks() -> None:
    """Checks scales, amax / 6 rounded up to powers of two: 12 / 6 is exact, 12.5 / 6 is not."""
    x = torch.zeros(4, 32)
    x[0, 0], x[1, 3], x[2, 5] = 12.0, -12.5, 6 * 2.0**-127
    packed, scale = NVFP4Blocks(tile=(1, 32), pow_2_scales=True).quantize(x, torch.ones(1))
    assert scale.dtype == torch.uint8 and scale.tolist() == [[128], [129], [0], [0]]
    values = cast_from_fp4x2(packed).double() * torch.exp2(scale.double() - 127)
    assert values[0, 0] == 12.0 and values[1, 3] == -12.0 and values[2, 5] == 6 * 2.0**-127


PRODUCTS = [case for case in cases("gm") if case.params["mode"] == "nvfp4_gemm"]


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.name)
@pytest.mark.parametrize("gemm_type", [GEMMType.FPROP, GEMMType.WGRAD])
def test_recorded_products(case: Case, gemm_type: GEMMType) -> None:
    quantizer = NVFP4QuantizerRef(quant_tile_shape=tuple(case.params["tile"]))
    side = "row" if gemm_type is GEMMType.FPROP else "col"
    results = [
        NVFP4TensorRef(
            **{f"global_amax_{side}": tensor_of(case[f"amax_{s}"])}, _quantizer=quantizer
        )
        for s in "xw"
    ]
    qx, qw, sx, sw = (tensor_of(case[name]) for name in ("qx", "qw", "sx", "sw"))
    extra = {}
    if case.params.get("accumulate"):
        extra = {"out": tensor_of(case["out_in"]), "accumulate": True}
    out_dtype = FLOATS[case.params.get("out_dtype", "fp32")]
    y = quantizer.qgemm(
        qx, qw, None, out_dtype, sx.view(torch.uint8), sw, **extra, gemm_type=gemm_type,
        qresult_x=results[0], qresult_w=results[1],
    )  # fmt: skip
    if case.params.get("exactness") == "exact":
        assert_tensor(y, case["y"], case.name)
    if "exact.fp64" in case:
        assert_within(case, bytes_of(y).view(case["y"].dtype).reshape(y.shape))


def test_there_are_products() -> None:
    assert len(PRODUCTS) == 7


@pytest.mark.parametrize(
    ("rows", "inner", "extra", "message"),
    [
        (8, 32, {"bias": torch.zeros(8)}, "qgemm: NVFP4QuantizerRef takes no bias"),
        (8, 32, {"accumulate": True}, "qgemm: out and accumulate=True need each other"),
        (8, 32, {"out": torch.zeros(8, 8)}, "qgemm: out and accumulate=True need each other"),
        (8, 16, {}, "qgemm: K % 32 and N % 8 must be 0, got K=16, N=8"),
        (4, 32, {}, "qgemm: K % 32 and N % 8 must be 0, got K=32, N=4"),
    ],
)
def test_what_products_refuse(rows: int, inner: int, extra: dict, message: str) -> None:
    quantizer = NVFP4QuantizerRef(columnwise=False)
    q = quantizer.quantize(torch.randn(rows, inner))
    with pytest.raises(AssertionError) as raised:
        quantizer.qgemm(q.data, q.data, None, torch.float32, q.scale, q.scale, **extra)
    assert str(raised.value) == message


def test_shapes_usages_and_saving() -> None:
    x = torch.randn(2, 16, 32).to(torch.bfloat16)
    quantizer = NVFP4QuantizerRef(with_rht=True)
    q = quantizer.quantize(x)
    assert q.shape == x.shape and q.dequantize().shape == x.shape
    assert q.dequantize().dtype == torch.bfloat16
    assert (q.data.shape, q.scale.shape) == ((32, 16), (32, 2))
    assert (q.data_t.shape, q.scale_t.shape) == ((32, 16), (32, 2))
    kept = [q.data, q.data_t, q.scale, q.scale_t]
    tensors, shell = q.prepare_for_saving()
    assert all(a is b for a, b in zip(tensors, kept, strict=True)) and q.data is None
    assert q.global_amax_row is not None and q.global_amax_col is not None
    assert shell.restore_from_saved([*tensors, x]) == [x] and q.data is kept[0]
    q.update_usage(columnwise_usage=False)
    assert q.get_usages() == {"rowwise": True, "columnwise": False} and q.global_amax_col is None
    with pytest.raises(RuntimeError) as raised:
        q.update_usage(columnwise_usage=True)
    assert str(raised.value) == "update_usage: columnwise data are missing and cannot be made"
    q.update_usage(rowwise_usage=False)
    with pytest.raises(RuntimeError) as raised:
        q.dequantize()
    assert str(raised.value) == "dequantize: NVFP4TensorRef needs rowwise data"


def test_update_quantized_and_make_empty() -> None:
    quantizer = NVFP4QuantizerRef()
    first, second = torch.randn(16, 32), torch.randn(16, 32)
    q = quantizer.make_empty((16, 32), dtype=torch.float32)
    assert quantizer.update_quantized(first, q, noop_flag=torch.ones(1)) is q
    assert not q.data.any()
    quantizer.update_quantized(first, q, noop_flag=torch.zeros(1))
    assert_tensor(q.data, quantizer.quantize(first).data, "filled")
    assert quantizer.quantize(second, out=q) is q
    assert_tensor(q.scale_t, quantizer.quantize(second).scale_t, "filled again")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quant_tile_shape": (1, 32)},
         "NVFP4QuantizerRef: quant_tile_shape must be one of ((1, 16), (16, 16)), got (1, 32)"),
        ({"quant_tile_shape": (1, 16), "pow_2_scales": True},
         "NVFP4QuantizerRef: quant_tile_shape must be one of ((1, 32),), got (1, 16)"),
        ({"nvfp4_use_4over6": True, "nvfp4_4over6_err_mode": "max"},
         "NVFP4QuantizerRef: nvfp4_4over6_err_mode must be MAE or MSE, got 'MAX'"),
        ({"nvfp4_use_4over6": True, "nvfp4_e4m3_max": 300},
         "NVFP4QuantizerRef: nvfp4_e4m3_max must be 448 or 256, got 300"),
    ],
)  # fmt: skip
def test_what_the_quantizer_refuses(options: dict, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        NVFP4QuantizerRef(**options)
    assert str(raised.value) == message


def test_roles() -> None:
    weight = nvfp4_ref_rht_2d_factory(QuantizerRole("linear", "weight"))
    assert weight.quant_tile_shape == (16, 16) and not weight.with_rht
    for role in (QuantizerRole("linear", "input"), QuantizerRole("linear", "grad_output"), None):
        quantizer = nvfp4_ref_rht_2d_factory(role)
        assert quantizer.quant_tile_shape == (1, 16) and quantizer.with_rht


def test_the_transform_of_a_matrix() -> None:
    x = torch.randn(32, 64, dtype=torch.bfloat16)
    transformed = NVFP4QuantizerRef(with_rht=False)._apply_rht(x)
    q = NVFP4Quantizer(with_rht=True, with_post_rht_amax=True)(x.t().contiguous())
    assert torch.equal(q._amax_columnwise, transformed.abs().max().float().reshape(1))


def test_clearing_releases_the_amaxes_too() -> None:
    q = NVFP4QuantizerRef().quantize(torch.randn(16, 32))
    assert not is_scheme(q), "its buffers are not those of the kernels"
    q.clear()
    assert all(not isinstance(value, torch.Tensor) for value in vars(q).values())
