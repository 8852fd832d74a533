# SPDX-License-Identifier: Apache-2.0
"""torch.export of modules with quantized weights, and tensors without memory."""

import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import ALL, assert_same_buffers, sample
from narrowfloat.common.recipe import (
    DelayedScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    Recipe,
)
from narrowfloat.pytorch.cpp_extensions import general_gemm
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


class Product(Exported):
    """A layer that multiplies codes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return general_gemm(self.weight, self.quantizer(x), x.dtype)[0]


class Decoded(Exported):
    """A layer that reads the values of its weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.dequantize()


class Network(torch.nn.Module):
    """A layer of the package inside an autocast."""

    def __init__(self, chosen: Recipe, quantized: bool) -> None:
        super().__init__()
        self.recipe = chosen
        with nfp.quantized_model_init(enabled=quantized, recipe=chosen):
            self.layer = nfp.Linear(64, 64)
        self.layer.requires_grad_(not quantized)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with nfp.autocast(recipe=self.recipe):
            return self.layer(x)


def reloaded(program: torch.export.ExportedProgram) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns the program after it was saved and loaded."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


def export_as_eager(module: torch.nn.Module, strict: bool) -> None:
    """Exports, saves and loads, before and after decompositions; every run gives eager's bytes."""
    x = sample(64, 64)
    expected = module(x)
    program = torch.export.export(module, (x,), strict=strict)
    for each in (program, program.run_decompositions()):
        assert torch.equal(each.module()(x), expected)
        assert torch.equal(reloaded(each)(x), expected)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["float8_current", "nvfp4", "hybrid_nvfp4_mxfp8"])
@pytest.mark.parametrize("module", [Exported, Product, Decoded])
def test_quantized_weights_are_exported(module: type, kind: str, strict: bool) -> None:
    export_as_eager(module(kind), strict)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("chosen", [MXFP8BlockScaling, Float8CurrentScaling])
def test_layers_are_exported(chosen: type[Recipe], quantized: bool, strict: bool) -> None:
    export_as_eager(Network(chosen(), quantized), strict)


def test_delayed_scaling_is_exported_but_not_decomposed() -> None:
    """PyTorch wants buffers of the module for what a program changes: its message says so."""
    layer, x = nfp.Linear(64, 64), sample(64, 64)
    with torch.no_grad(), nfp.autocast(recipe=DelayedScaling()):
        expected = layer(x)
        program = torch.export.export(layer, (x,))
        assert torch.equal(reloaded(program)(x), expected)
        with pytest.raises(RuntimeError, match="is mutated in the forward method"):
            program.run_decompositions()


def test_weights_that_learn_are_exported_but_not_decomposed() -> None:
    module, x = Exported("mxfp8"), sample(64, 64)
    module.weight.requires_grad_(True)
    program = torch.export.export(module, (x,))
    assert torch.equal(reloaded(program)(x), module(x))
    with pytest.raises(RuntimeError, match="Only Tensors of floating point"):
        program.run_decompositions()


class Bytes(torch.Tensor):
    """A subclass over codes that has nothing to do with the package."""

    def __new__(cls, codes: torch.Tensor) -> "Bytes":
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        made.codes = codes
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict, meta: None, size: object, stride: object) -> "Bytes":
        return Bytes(inner["codes"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN206
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes)
        return func(*(a.codes.float() if isinstance(a, cls) else a for a in args))


def test_no_subclass_over_integers_is_decomposed_while_it_learns() -> None:
    """PyTorch makes a parameter of each inner tensor, with the outer one's requires_grad."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(Bytes(torch.ones(4, 4, dtype=torch.uint8)))
    module.forward = lambda x: x @ module.weight
    program = torch.export.export(module, (torch.ones(4, 4),))
    with pytest.raises(RuntimeError, match="Only Tensors of floating point"):
        program.run_decompositions()


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("kind", list(ALL))
def test_a_pickled_parameter_is_a_parameter(kind: str, requires_grad: bool) -> None:
    weight = torch.nn.Parameter(ALL[kind]()(sample()).detach(), requires_grad=requires_grad)
    loaded = pickle.loads(pickle.dumps(weight))
    assert isinstance(loaded, torch.nn.Parameter) and type(loaded) is type(weight)
    assert loaded.requires_grad == requires_grad
    assert_same_buffers(loaded.detach(), weight.detach(), kind)


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
