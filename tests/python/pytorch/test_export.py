# SPDX-License-Identifier: Apache-2.0
"""Tests the export of weights in other projects' conventions."""

from __future__ import annotations

import narrowfloat.pytorch as nfp
import pytest
import torch
from families import E4M3

WEIGHT = torch.linspace(-3, 3, 192 * 256, dtype=torch.bfloat16).reshape(192, 256)
QUANTIZERS = {
    "tensor": lambda: nfp.Float8CurrentScalingQuantizer(E4M3, "cpu"),
    "block": lambda: nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
    "mxfp8": lambda: nfp.MXFP8Quantizer(E4M3),
    "nvfp4": lambda: nfp.NVFP4Quantizer(),
}


def decoded(kind: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Decodes the weight by the rule of the convention."""
    if kind == "nvfp4":
        packed = tensors["a.weight"]
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        values = torch.cat((table, -table))[codes]
        block = tensors["a.weight_scale"].float() * tensors["a.weight_scale_2"]
        return values * block.repeat_interleave(16, -1)
    values = tensors["a.weight"].float()
    if kind == "mxfp8":
        power = tensors["a.weight_scale_inv"].view(torch.float8_e8m0fnu).float()
        return values * power.repeat_interleave(32, -1)
    scale = tensors["a.weight_scale_inv"]
    if kind == "block":
        assert scale.shape == (2, 2)
        scale = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:192]
    return values * scale


@pytest.mark.parametrize("kind", list(QUANTIZERS))
@pytest.mark.parametrize("from_master", [False, True])
def test_the_convention_has_the_values_of_the_codes(kind: str, from_master: bool) -> None:
    quantizer = QUANTIZERS[kind]()
    quantized = quantizer(WEIGHT)
    state = {"a.weight": WEIGHT if from_master else quantized, "a.bias": torch.ones(5)}
    convention = "modelopt" if kind == "nvfp4" else "fp8"
    pairs = list(nfp.export(state, convention, QUANTIZERS[kind]() if from_master else None))
    assert pairs[-1][0] == "a.bias" and torch.equal(pairs[-1][1], state["a.bias"])
    found = decoded(kind, dict(pairs))
    expected = quantized.dequantize(dtype=torch.float32)
    # Each side rounds amax / 2688 once, and its product with the block's scale once.
    tolerance = {"rtol": 2.0**-21, "atol": 0.0} if kind == "nvfp4" else {"rtol": 0.0, "atol": 0.0}
    torch.testing.assert_close(found, expected, **tolerance)


def test_scales_in_the_order_of_products_are_laid_out_again() -> None:
    plain, swizzled = QUANTIZERS["mxfp8"](), QUANTIZERS["mxfp8"]()
    swizzled.optimize_for_gemm = True
    results = [
        dict(nfp.export({"a.weight": quantizer(WEIGHT)}, "fp8")) for quantizer in (plain, swizzled)
    ]
    assert results[0].keys() == {"a.weight", "a.weight_scale_inv"}
    for name in results[0]:
        assert torch.equal(results[0][name].view(torch.uint8), results[1][name].view(torch.uint8))


def test_a_function_chooses_and_what_cannot_be_held_is_refused() -> None:
    state = {"a.weight": WEIGHT, "head.weight": WEIGHT}
    chosen = dict(
        nfp.export(state, "fp8", lambda name, _: None if "head" in name else QUANTIZERS["block"]())
    )
    assert chosen.keys() == {"a.weight", "a.weight_scale_inv", "head.weight"}
    assert chosen["head.weight"].dtype == torch.bfloat16
    known = "fp8, mxfp8, deepseek-v4, compressed-tensors, modelopt, mxfp4"
    with pytest.raises(
        ValueError, match=f"^export: unknown convention 'nobodys'; there are: {known}$"
    ):
        list(nfp.export(state, "nobodys", QUANTIZERS["block"]()))
    with pytest.raises(ValueError, match=r"^export: unknown convention 'nobodys'"):
        nfp.export(state, "nobodys")  # raises before it reads a tensor
    with pytest.raises(
        NotImplementedError, match=r"^export: 'torchao' can be read but not written$"
    ):
        nfp.export(state, "torchao")
    lines = nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, block_scaling_dim=1)
    with pytest.raises(
        NotImplementedError, match=r"^'.*' \(.*\) has scales that no other convention holds$"
    ):
        list(nfp.export(state, "fp8", lines))
