# SPDX-License-Identifier: Apache-2.0
"""torch.export of modules with quantized weights, and tensors without memory."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from families import ALL, assert_same_buffers, sample
from torch._subclasses.fake_tensor import FakeTensorMode

from narrowfloat import pytorch as nfp

stateless = pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "blockwise_2d", "nvfp4"])


class Exported(torch.nn.Module):
    """A layer whose weight is quantized, and whose input is quantized on the way."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        weight = ALL[kind]()(sample(64, 64, seed=1)).detach()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.quantizer = ALL[kind]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(self.quantizer(x).dequantize(), self.weight)


LOADER = """
import sys, torch
import narrowfloat.pytorch
x, expected = torch.load(sys.argv[2], weights_only=True)
loaded = torch.export.load(sys.argv[1]).module()
assert torch.equal(loaded(x), expected), "other bytes"
print("loaded")
"""


@stateless
def test_a_program_is_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    module, x = Exported(kind), sample(64, 64)
    expected = module(x)
    program = torch.export.export(module, (x,))
    assert torch.equal(program.module()(x), expected)
    program = program.run_decompositions()
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"narrowfloat.quantize.default", "narrowfloat.dequantize.default"} <= targets
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save((x, expected), tmp_path / "values.pt")
    if kind != "mxfp8":  # a process takes seconds: the others are loaded in this one
        assert torch.equal(torch.export.load(tmp_path / "program.pt2").module()(x), expected)
        return
    run = subprocess.run(
        [sys.executable, "-c", LOADER, tmp_path / "program.pt2", tmp_path / "values.pt"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "loaded" in run.stdout, run.stderr


def test_a_program_keeps_its_batch_as_a_symbol() -> None:
    module, x = Exported("mxfp8"), sample(64, 64)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(module, (x,), dynamic_shapes={"x": {0: 32 * batch}})
    for rows in (32, 96):
        x = sample(rows, 64)
        assert torch.equal(program.module()(x), module(x))


@pytest.mark.parametrize("kind", list(ALL))
def test_meta_tensors_are_quantized_without_memory(kind: str) -> None:
    x = torch.empty(128, 256, device="meta", dtype=torch.bfloat16)
    made, real = ALL[kind]()(x), ALL[kind]()(sample(dtype=torch.bfloat16))
    assert made.is_meta and made.shape == real.shape and made.dtype == real.dtype
    assert type(made) is type(real) and made.get_usages() == real.get_usages()
    values = made.dequantize()
    assert values.is_meta and values.shape == real.shape and values.dtype == torch.bfloat16
    assert made.detach().clone().is_meta


@pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "blockwise_2d", "nvfp4"])
def test_a_module_on_meta_is_made_real(kind: str) -> None:
    quantizer = ALL[kind]()
    module = torch.nn.Linear(256, 128, bias=False, device="meta")
    module.weight = torch.nn.Parameter(quantizer(module.weight).detach())
    assert module.weight.is_meta
    module.to_empty(device="cpu")
    values = sample()
    with torch.no_grad():
        module.weight.copy_(values)
    assert_same_buffers(module.weight.detach(), quantizer(values).detach(), kind)


@pytest.mark.parametrize("kind", list(ALL))
def test_fake_tensors_are_quantized(kind: str) -> None:
    with FakeTensorMode():
        made = ALL[kind]()(torch.empty(128, 256))
        assert made.dequantize().shape == (128, 256)
    assert isinstance(made, nfp.QuantizedTensor) and made.device.type == "cpu"
