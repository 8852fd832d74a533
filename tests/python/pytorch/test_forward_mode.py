# SPDX-License-Identifier: Apache-2.0
"""Tests that tangents of forward mode pass through quantizers unchanged, and that transforms of
torch.func are refused, because their tensors have no memory."""

import re
from collections.abc import Callable

import pytest
import torch
from families import ALL, sample
from torch.autograd import forward_ad

OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "values": lambda q: q.dequantize(),
    "operator": lambda q: q * 3,
    "clone": lambda q: q.clone() * 3,
    "view": lambda q: q.view(2, 32, 64) * 3,
    "transpose": lambda q: q.t() * 3,
}


@pytest.mark.parametrize("has_grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("operation", list(OPERATIONS))
@pytest.mark.parametrize("kind", list(ALL))
def test_a_quantizer_passes_tangents(kind: str, operation: str, has_grad: bool) -> None:
    run, tangent = OPERATIONS[operation], sample(64, 64, seed=1)
    with forward_ad.dual_level(), torch.set_grad_enabled(has_grad):
        quantized = ALL[kind]()(forward_ad.make_dual(sample(64, 64), tangent))
        found = forward_ad.unpack_dual(run(quantized)).tangent
    expected = tangent if operation == "values" else run(tangent)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", list(ALL))
def test_a_quantized_tensor_has_tangents(kind: str) -> None:
    tensor, tangent = ALL[kind]()(sample(64, 64)).detach(), sample(64, 64, seed=1)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensor, tangent)
        found = [forward_ad.unpack_dual(y).tangent for y in (dual.dequantize(), dual.clone() * 1)]
    assert all(torch.equal(each, tangent) for each in found)


TRANSFORMS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], torch.Tensor]] = {
    "Grad": lambda run: torch.func.grad(lambda x: run(x).sum())(sample(64, 64)),
    "Jvp": lambda run: torch.func.jvp(run, (sample(64, 64),), (sample(64, 64),)),
    "Functionalize": lambda run: torch.func.functionalize(run)(sample(64, 64)),
    "Vmap": lambda run: torch.func.vmap(run)(sample(2, 64, 64)),
}


@pytest.mark.parametrize("transform", list(TRANSFORMS))
@pytest.mark.parametrize("kind", ["float8_delayed", "mxfp8", "identity", "hybrid_mxfp8_identity"])
def test_transforms_of_torch_func_are_refused(kind: str, transform: str) -> None:
    quantizer = ALL[kind]()
    message = (
        f"quantize: the input must not belong to a transform of torch.func, got {transform}; "
        "quantize outside of the transform"
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        TRANSFORMS[transform](lambda x: quantizer(x) * 3)


def test_transforms_take_what_is_quantized_outside_of_them() -> None:
    quantizer, w = ALL["mxfp8"](), sample(64, 64, seed=1)
    x, weight = sample(4, 64), ALL["mxfp8"]()(w).detach()
    run = torch.func.vmap(lambda row: torch.nn.functional.linear(row, weight) + quantizer(w)[0])
    expected = torch.nn.functional.linear(x, weight.dequantize()) + weight.dequantize()[0]
    assert torch.equal(run(x), expected)


def test_values_of_another_type_have_tangents_of_that_type() -> None:
    tensor, tangent = ALL["mxfp8"]()(sample(64, 64)).detach(), sample(64, 64, seed=1)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensor, tangent)
        found = forward_ad.unpack_dual(dual.dequantize(dtype=torch.bfloat16)).tangent
    assert torch.equal(found, tangent.bfloat16())
