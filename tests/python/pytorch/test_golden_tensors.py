# SPDX-License-Identifier: Apache-2.0
"""Compares the PyTorch face with the recorded cases."""

import ml_dtypes
import numpy as np
import pytest
import torch
from families import delayed
from golden import Case, assert_same, cases
from test_nvfp4 import CASES as NVFP4_CASES
from test_nvfp4 import codes, operand, with_signs_of_zero
from torch_golden import FLOATS, bytes_of, tensor_of

from narrowfloat import pytorch as nfp

FP8 = {"e4m3": nfp.DType.kFloat8E4M3, "e5m2": nfp.DType.kFloat8E5M2}


def check_padded(actual: torch.Tensor, recorded: np.ndarray, what: str) -> None:
    """Asserts that the buffer has the recorded scales, and zeros in the rest."""
    padded = np.zeros(tuple(actual.shape), recorded.dtype)
    padded[: recorded.shape[0], : recorded.shape[1]] = recorded
    assert_same(bytes_of(actual), padded, f"{what}, padding zero")


def check_dequantized(case: Case, tensor: nfp.QuantizedTensor, suffix: str = "") -> None:
    for name, dtype in FLOATS.items():
        recorded = f"dequant{suffix}.{name}"
        if recorded in case:
            values = tensor.dequantize(dtype=dtype)
            assert values.dtype == dtype and values.shape == tensor.shape
            assert_same(bytes_of(values), case[recorded], f"{case.name} {recorded}")


def check_per_tensor(case: Case, q: nfp.Float8Tensor) -> None:
    assert_same(bytes_of(q._data), case.kernel("data"), f"{case.name} data")
    assert_same(bytes_of(q._scale_inv), case.kernel("scale_inv"), f"{case.name} scale_inv")
    if "data_t" in case:
        assert_same(bytes_of(q._transpose), case.kernel("data_t"), f"{case.name} data_t")


@pytest.mark.parametrize("case", list(cases("cs")), ids=lambda case: case.name)
def test_current_scaling(case: Case) -> None:
    x = tensor_of(case["x"]).reshape(case.params["shape"])
    quantizer = nfp.Float8CurrentScalingQuantizer(
        FP8[case.params["q_dtype"]],
        force_pow_2_scales=case.params["force_pow_2_scales"],
        amax_epsilon=case.params["amax_epsilon"],
    )
    q = quantizer(x)
    if x.numel() == 0:  # nothing is written then
        assert q.shape == x.shape and q.dequantize().shape == x.shape
        return
    check_per_tensor(case, q)


@pytest.mark.parametrize("case", list(cases("ds")), ids=lambda case: case.name)
def test_delayed_scaling(case: Case) -> None:
    x = tensor_of(case["x"]).reshape(case.params["shape"])
    quantizer = nfp.Float8Quantizer(
        tensor_of(case["scale"]).reshape(1), torch.zeros(1), FP8[case.params["q_dtype"]]
    )
    q = quantizer(x)
    if x.numel() == 0:
        assert q.shape == x.shape
        return
    check_per_tensor(case, q)
    assert_same(bytes_of(quantizer.amax), case.kernel("amax"), f"{case.name} amax")


def takes(quantizer: nfp.Quantizer, x: torch.Tensor) -> bool:
    return quantizer._spec().has_whole_blocks(tuple(x.shape))


@pytest.mark.parametrize("swizzled", [False, True], ids=["compact", "swizzled"])
@pytest.mark.parametrize("case", list(cases("mx")), ids=lambda case: case.name)
def test_mxfp8(case: Case, swizzled: bool) -> None:
    x = tensor_of(case["x"])
    both = "data_colwise" in case
    quantizer = nfp.MXFP8Quantizer(
        FP8[case.params["q_dtype"]],
        columnwise=both,
        with_2d_quantization=case.params["mode"] == "mxfp8_2d",
    )
    quantizer.optimize_for_gemm = swizzled
    if not takes(quantizer, x):
        with pytest.raises(ValueError, match=r"^quantize: MXFP8Quantizer needs rows and columns"):
            quantizer(x)
        return
    q = quantizer(x)
    assert q._with_gemm_swizzled_scales is swizzled
    for direction, suffix in [("rowwise", "")] + [("columnwise", "_colwise")] * both:
        data, scales = getattr(q, f"_{direction}_data"), getattr(q, f"_{direction}_scale_inv")
        assert data.shape == x.shape
        assert_same(bytes_of(data), case[f"data{suffix}"], f"{case.name} data{suffix}")
        name = f"{case.name} scale_inv{suffix}"
        if swizzled:
            assert_same(bytes_of(scales), case[f"scale_inv{suffix}_swizzled"], name)
        else:
            check_padded(scales, case[f"scale_inv{suffix}"], name)
    check_dequantized(case, q)
    if both:
        q.update_usage(rowwise_usage=False)
        check_dequantized(case, q, "_colwise")


@pytest.mark.parametrize("case", list(cases("bs")), ids=lambda case: case.name)
def test_float8_blocks(case: Case) -> None:
    x = tensor_of(case["x"])
    dim = 1 if case.params["mode"] == "fp8_blockwise_1d" else 2
    both = "data_t" in case
    quantizer = nfp.Float8BlockQuantizer(
        FP8[case.params["q_dtype"]],
        rowwise=True,
        columnwise=both,
        amax_epsilon=case.params["amax_epsilon"],
        force_pow_2_scales=case.params["force_pow_2_scales"],
        block_scaling_dim=dim,
    )
    q = quantizer(x)
    for direction, suffix in [("rowwise", "")] + [("columnwise", "_t")] * both:
        data, scales = getattr(q, f"_{direction}_data"), getattr(q, f"_{direction}_scale_inv")
        assert_same(bytes_of(data), case.kernel(f"data{suffix}"), f"{case.name} data{suffix}")
        recorded = case.kernel(f"scale_inv{suffix}")
        recorded = recorded.T if dim == 1 else recorded
        if x.numel():
            check_padded(scales, recorded, f"{case.name} scale_inv{suffix}")
    if both and dim == 2 and x.numel():
        columnwise = (q._columnwise_data.clone(), q._columnwise_scale_inv.clone())
        q.update_usage(columnwise_usage=False)
        q.update_usage(rowwise_usage=True, columnwise_usage=True)
        assert torch.equal(q._columnwise_data, columnwise[0])
        assert torch.equal(q._columnwise_scale_inv, columnwise[1])


# NVFP4Quantizer computes the errors of 4over6 exactly, and has no option for fast math.
EXACT_ERRORS = [case for case in NVFP4_CASES if not case.params.get("err_use_fast_math")]


@pytest.mark.parametrize("case", EXACT_ERRORS, ids=lambda case: case.name)
def test_nvfp4(case: Case) -> None:
    params, x, both = case.params, tensor_of(case["x"]), "data_t" in case
    over = {}
    if params.get("use_4over6"):
        over = {"nvfp4_e4m3_max": params["e4m3_max"], "nvfp4_4over6_err_mode": params["err_mode"]}
    quantizer = nfp.NVFP4Quantizer(
        columnwise=both,
        with_rht=bool(params.get("with_rht")),
        with_post_rht_amax=bool(params.get("with_rht")),
        with_2d_quantization=params.get("tile", [1, 16])[0] == 16,
        row_scaled_nvfp4=bool(params.get("row_scaled")),
        nvfp4_use_4over6=bool(over),
        with_random_sign_mask=bool(params.get("rht_sign_mask")),
        **over,
    )
    if not takes(quantizer, x):
        with pytest.raises(ValueError, match=r"^quantize: NVFP4Quantizer needs rows and columns"):
            quantizer(x)
        return
    if quantizer.with_rht and x.dtype != torch.bfloat16:
        with pytest.raises(ValueError, match=f"^quantize: with_rht takes bfloat16, got {x.dtype}$"):
            quantizer(x)
        return
    q = quantizer(x)
    for direction, suffix in [("rowwise", "")] + [("columnwise", "_t")] * both:
        got = codes(bytes_of(getattr(q, f"_{direction}_data")))
        recorded = case.kernel(f"data{suffix}").reshape(-1)
        want = with_signs_of_zero(recorded, operand(case, bool(suffix)))
        assert_same(got, want, f"{case.name} data{suffix}")
        scales = case.kernel(f"scale_inv{suffix}").view(np.uint8)
        check_padded(getattr(q, f"_{direction}_scale_inv"), scales, f"{case.name} scale{suffix}")
        amax = bytes_of(getattr(q, f"_amax_{direction}"))
        assert_same(amax, case.kernel(f"amax{suffix}"), f"{case.name} amax{suffix}")


@pytest.mark.parametrize("case", list(cases("rht")), ids=lambda case: case.name)
def test_transform(case: Case) -> None:
    """Checks that the transform's matrix in a quantizer is the recorded matrix."""
    mask = case.params["sign_mask"]
    quantizer = nfp.NVFP4Quantizer(with_random_sign_mask=mask != 0)
    if mask not in (0, quantizer.rht_matrix_random_sign_mask_t):
        pytest.skip("quantizers carry one sign vector, or none")
    assert quantizer.rht_matrix_random_sign_mask_t == mask
    size = quantizer.rht_matrix.shape[0]
    assert quantizer.rht_matrix.dtype == torch.bfloat16
    groups = case["x"].astype(np.float64).reshape(-1, size)
    product = groups @ quantizer.rht_matrix.double().numpy()
    # Sums of 16 exact products in fp64 differ only by the order of the additions.
    np.testing.assert_allclose(product.reshape(case["exact.fp64"].shape), case["exact.fp64"], 1e-12)


@pytest.mark.parametrize("scale", [0.375, 1.0, 3.5])
def test_scale_inv_is_the_reciprocal(scale: float) -> None:
    q = delayed(scale=scale)(torch.ones(3, 5))
    assert_same(bytes_of(q._scale_inv), np.float32([1]) / np.float32([scale]), "scale_inv")
    assert ml_dtypes.float8_e4m3fn(scale) == q.dequantize()[0, 0].item() * scale
