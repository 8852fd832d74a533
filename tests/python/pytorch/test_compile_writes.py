# SPDX-License-Identifier: Apache-2.0
"""Writes in compiled functions have the bytes of those outside; some end the graph."""

import pytest
import torch
from families import E4M3, assert_same_buffers
from writes import KINDS, WRITES, values

from narrowfloat import pytorch as nfp


@pytest.fixture(autouse=True)
def _without_earlier_graphs() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [name for name in WRITES if name != "flag"])
def test_writes_have_the_bytes_of_eager(kind: str, write: str) -> None:
    x = values()
    written, quantizers = [], []
    for compiled in (True, False):
        quantizer = KINDS[kind]()
        q = quantizer(x).detach()

        def step(q: nfp.QuantizedTensor, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            WRITES[write](q, x)
            return y * 2

        run = torch.compile(step, backend="aot_eager") if compiled else step
        with torch.no_grad():
            assert torch.equal(run(q, x), (x + 1) * 2)
        written.append(q)
        quantizers.append(quantizer)
    assert_same_buffers(*written, "written")
    if kind == "float8_delayed":
        assert torch.equal(*(quantizer.amax for quantizer in quantizers))


def test_a_compiled_write_above_the_scale_raises() -> None:
    q = nfp.Float8CurrentScalingQuantizer(E4M3)(values()).detach()

    @torch.compile(backend="aot_eager")
    def step(q: nfp.QuantizedTensor) -> None:
        q[:128].mul_(1000.0)

    with torch.no_grad(), pytest.raises(ValueError, match=r"Float8Tensor"):
        step(q)
