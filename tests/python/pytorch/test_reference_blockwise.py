# SPDX-License-Identifier: Apache-2.0
"""Tests the reference of block-scaled FP8: recorded bytes, products, usages."""

import numpy as np
import pytest
import torch
from golden import Case, cases
from narrowfloat.pytorch.custom_recipes.reference_blockwise import (
    Float8BlockQuantizerRef,
    float8_block_scaling_ref_factory,
    fused_multiply_add,
)
from narrowfloat.pytorch.quantization import QuantizerRole
from test_golden_gemm import assert_within
from torch_golden import FLOATS, FP8, assert_tensor, bytes_of, tensor_of

import narrowfloat as nf

E4M3 = torch.float8_e4m3fn


def quantizer_of(case: Case) -> Float8BlockQuantizerRef:
    return Float8BlockQuantizerRef(
        FP8[case.params["q_dtype"]],
        pow_2_scales=case.params["force_pow_2_scales"],
        eps=case.params["amax_epsilon"],
        block_scaling_dim=2 if case.params["tile"][0] > 1 else 1,
    )


@pytest.mark.parametrize("case", list(cases("bs")), ids=lambda case: case.name)
def test_recorded(case: Case) -> None:
    q = quantizer_of(case).quantize(tensor_of(case["x"]))
    for name, tensor in (
        ("data", q.data),
        ("scale_inv", q.scale),
        ("data_t", q.data_t),
        ("scale_inv_t", q.scale_t),
    ):
        if name in case:
            assert_tensor(tensor, case[name], f"{case.name} {name}")
    for name, expected in case.dequantized.items():
        if name in FLOATS:
            assert_tensor(q.dequantize(FLOATS[name]), expected, f"{case.name} dequant.{name}")


def test_all_recorded_cases_run() -> None:
    assert len(list(cases("bs"))) == 140


PRODUCTS = [case for case in cases("gm") if case.params["mode"] == "fp8_blockwise_gemm"]


def product(case: Case) -> torch.Tensor:
    qx, qw, sx, sw = (tensor_of(case[name]) for name in ("qx", "qw", "sx", "sw"))
    extra = {}
    if "bias" in case:
        extra["bias"] = tensor_of(case["bias"]).reshape(-1)
    if case.params.get("accumulate"):
        extra |= {"out": tensor_of(case["out_in"]), "accumulate": True}
    out_dtype = FLOATS[case.params.get("out_dtype", "fp32")]
    return Float8BlockQuantizerRef(E4M3).qgemm(qx, qw, None, out_dtype, sx, sw, **extra)


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.name)
def test_recorded_products(case: Case) -> None:
    y = product(case)
    if case.params.get("exactness") == "exact":
        assert_tensor(y, case["y"], case.name)
    if "exact.fp64" in case:
        assert_within(case, bytes_of(y).view(case["y"].dtype).reshape(y.shape))


def test_there_are_products() -> None:
    assert len(PRODUCTS) == 12


@pytest.mark.parametrize(("dim_x", "dim_w"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_products_are_those_of_the_library(dim_x: int, dim_w: int) -> None:
    """Checks that no bit differs: the order of sums and the fused steps are the same."""
    torch.manual_seed(7)
    x, w = torch.randn(140, 300), torch.randn(24, 300)
    names = {1: "fp8_block1x128_e4m3", 2: "fp8_block128x128_e4m3"}
    operands, kernels = [], []
    for tensor, dim in ((x, dim_x), (w, dim_w)):
        quantizer = Float8BlockQuantizerRef(E4M3, block_scaling_dim=dim, pow_2_scales=False)
        operands.append(quantizer.quantize(tensor))
        kernels.append(nf.quantize(tensor.numpy(), names[dim], force_pow_2_scales=False))
    qx, qw = operands
    y = qx._quantizer.qgemm(qx.data, qw.data, None, torch.float32, qx.scale, qw.scale)
    assert_tensor(y, nf.qgemm(*kernels), "qgemm")


def test_fused_multiply_add_rounds_once() -> None:
    """Compares a * b + c of fp32 numbers, ties included, with sums in 80-bit floats."""
    torch.manual_seed(8)
    a, b = torch.randn(20000), torch.randn(20000)
    c = -(a * b) + torch.randn(20000) * 2.0**-30 * torch.randint(0, 3, (20000,))
    one = torch.tensor([1.0 + 2.0**-23])
    a = torch.cat([a, one, one, torch.tensor([0.0, float("inf"), float("nan")])])
    b = torch.cat([b, torch.tensor([2.0**-24, -(2.0**-24), 1.0, 1.0, 1.0])])
    c = torch.cat([c, torch.tensor([1.0, 1.0, -0.0, 1.0, 1.0])])
    got = fused_multiply_add(a, b, c)
    # Products of fp32 numbers are exact in 80-bit floats. The rounding of a sum cannot make a tie
    # of fp32 unless the sum has more than 64 bits; these sums have fewer.
    want = (a.numpy().astype(np.longdouble) * b.numpy() + c.numpy()).astype(np.float32)
    assert_tensor(got, want, "fused")


def test_shapes_usages_and_saving() -> None:
    x = torch.randn(2, 65, 130).to(torch.bfloat16)
    for dim, scale, scale_t in ((1, (130, 2), (130, 2)), (2, (2, 2), (2, 2))):
        quantizer = Float8BlockQuantizerRef(E4M3, block_scaling_dim=dim)
        q = quantizer.quantize(x)
        assert q.shape == x.shape and (q.data.shape, q.data_t.shape) == ((130, 130), (130, 130))
        assert (q.scale.shape, q.scale_t.shape) == (scale, scale_t)
        values = q.dequantize()
        assert values.shape == x.shape and values.dtype == torch.bfloat16
        tensors, shell = q.prepare_for_saving()
        assert q.data is None and shell.restore_from_saved(tensors) == []
        q.update_usage(rowwise_usage=False)
        if dim == 2:
            assert torch.equal(q.dequantize(), values)
        with pytest.raises(RuntimeError) as raised:
            q.update_usage(rowwise_usage=True)
        assert (
            str(raised.value) == "update_usage: a direction that was not quantized cannot be added"
        )
        q.update_usage(columnwise_usage=False)
        with pytest.raises(RuntimeError) as raised:
            q.dequantize()
        assert str(raised.value) == "dequantize: the tensor holds no data"


def test_update_quantized_and_make_empty() -> None:
    quantizer = Float8BlockQuantizerRef(E4M3)
    x = torch.randn(20, 30)
    q = quantizer.make_empty((20, 30))
    assert (
        quantizer.update_quantized(x, q, noop_flag=torch.ones(1)) is q and not q.data.float().any()
    )
    assert quantizer.quantize(x, out=q) is q
    assert_tensor(q.data, quantizer.quantize(x).data, "filled")
    assert torch.equal(quantizer.dequantize(q), q.dequantize())


def test_roles_and_refusals() -> None:
    weight = float8_block_scaling_ref_factory(QuantizerRole("grouped_linear", "weight"))
    assert weight.block_scaling_dim == 2 and weight.pow_2_scales and weight.dtype == E4M3
    for role in (QuantizerRole("linear", "grad_output"), QuantizerRole("dpa", "qkv"), None):
        assert float8_block_scaling_ref_factory(role).block_scaling_dim == 1
    assert float8_block_scaling_ref_factory("weight").block_scaling_dim == 2
    with pytest.raises(ValueError) as raised:
        Float8BlockQuantizerRef(E4M3, block_scaling_dim=3)
    assert str(raised.value) == "Float8BlockQuantizerRef: block_scaling_dim must be 1 or 2, got 3"
