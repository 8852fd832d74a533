# SPDX-License-Identifier: Apache-2.0
"""Tests that writes to meta tensors and FakeTensors check shapes and write nothing."""

import pytest
import torch
from families import E4M3
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from writes import KINDS, WRITES, values

from narrowfloat import pytorch as nfp


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", WRITES)
def test_writes_on_meta(kind: str, write: str) -> None:
    x = values("meta")
    q = KINDS[kind]()(x).detach()
    WRITES[write](q, x)
    assert q.is_meta and q.shape == x.shape


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", WRITES)
def test_writes_of_fake_tensors(kind: str, write: str) -> None:
    quantizer, x = KINDS[kind](), values()
    real = quantizer(x).detach()
    amax = quantizer.amax.clone() if kind == "float8_delayed" else None
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        fake = mode.from_tensor(x)
        q = mode.from_tensor(real)
        WRITES[write](q, fake)
        if amax is None:  # a real scale cannot quantize a FakeTensor
            WRITES[write](quantizer(fake).detach(), fake)
        assert type(q.dequantize()) is FakeTensor
    if amax is not None:
        assert torch.equal(quantizer.amax, amax), "the amax of a real quantizer"


def test_parts_on_meta_keep_the_rules_of_shapes() -> None:
    q = nfp.Float8CurrentScalingQuantizer(E4M3)(values("meta")).detach()
    with pytest.raises(RuntimeError):
        q[:128].copy_(torch.empty(3, 256, device="meta"))
