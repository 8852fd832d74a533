# SPDX-License-Identifier: Apache-2.0
"""Tests programs of torch.export with quantized tensors, and tensors without memory."""

import io
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import ALL, assert_same_buffers, delayed, sample
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
    """A layer with a quantized weight, which also quantizes and dequantizes its input."""

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
    if kind != "mxfp8":  # a new process takes seconds: other kinds use this one
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
    """A layer that dequantizes its weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.dequantize()


class Network(torch.nn.Module):
    """An nfp.Linear inside of an autocast."""

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
    """Saves and loads the program, and returns its module."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


def export_as_eager(module: torch.nn.Module, strict: bool) -> None:
    """Exports, decomposes, saves and loads; asserts the bytes of eager mode in every run."""
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


Step = Callable[[nfp.Quantizer, torch.Tensor, torch.Tensor], torch.Tensor]


def updated(q: nfp.Quantizer, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    made = q(x)
    made.update_usage(columnwise_usage=False)
    return made + x


def written(q: nfp.Quantizer, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    made = q(x)
    alias = made.detach()
    made.mul_(2)
    return made + alias


def rebound(q: nfp.Quantizer, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    made = q(x)
    made.data = q(x * 3)
    return made + x


# Operators on a tensor that is quantized in the graph, and on aliases and copies of a parameter.
OPERATORS: dict[str, Step] = {
    "matmul": lambda q, w, x: q(x) @ w,
    "mm": lambda q, w, x: torch.mm(q(x), w),
    "linear": lambda q, w, x: torch.nn.functional.linear(q(x), w),
    "addmm": lambda q, w, x: torch.addmm(x, q(x), w),
    "bmm": lambda q, w, x: torch.bmm(x.view(1, 256, 256), q(x).view(1, 256, 256)),
    "second operand": lambda q, w, x: x @ q(x),
    "transposed": lambda q, w, x: x @ q(x).t(),
    "mul": lambda q, w, x: q(x) * 2,
    "add": lambda q, w, x: q(x) + x,
    "sum": lambda q, w, x: q(x).sum(),
    "relu": lambda q, w, x: torch.relu(q(x)),
    "softmax": lambda q, w, x: q(x).softmax(-1),
    "cat": lambda q, w, x: torch.cat([q(x), q(x)]),
    "float64": lambda q, w, x: q(x).to(torch.float64) * 2,
    "slice": lambda q, w, x: q(x)[:128] * 2,
    "alias of a slice": lambda q, w, x: q(x)[:128].detach() * 2,
    "split": lambda q, w, x: torch.cat(q(x).split(128)),
    "view": lambda q, w, x: q(x).view(2, 128, 256) * 2,
    "read-only view": lambda q, w, x: q(x).reshape(8, 32, 256) * 2,
    "nominal type": lambda q, w, x: q(x).to_dtype(torch.bfloat16) * 2,
    "updated": updated,
    "written": written,
    "clone of a weight": lambda q, w, x: w.clone() + x,
    "view of a weight": lambda q, w, x: w.view(2, 128, 256) * 2,
    "alias of a weight": lambda q, w, x: w.detach() @ w,
    "data of a weight": lambda q, w, x: w.data + x,
    "clone of a slice": lambda q, w, x: w[128:].clone() * 2,
}


class Steps(torch.nn.Module):
    """Returns the results of steps, each of which gets a quantizer and a quantized weight."""

    def __init__(self, kind: str, steps: list[Step]) -> None:
        super().__init__()
        weight = ALL[kind]()(sample(256, 256, seed=1)).detach()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.quantizer = ALL[kind]()
        self.steps = steps

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([step(self.quantizer, self.weight, x.clone()) for step in self.steps])


def export_each(kind: str, steps: dict[str, Step], strict: bool) -> torch.export.ExportedProgram:
    """Returns the program of the steps. Asserts eager's results, also after it is loaded."""
    x = sample(256, 256)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about views that are values
        expected = Steps(kind, list(steps.values()))(x)
        module = Steps(kind, list(steps.values()))
        program = torch.export.export(module, (x,), strict=strict)
        for run in (program.module(), reloaded(program)):
            for name, got, want in zip(steps, run(x), expected, strict=True):
                assert type(got) is torch.Tensor and torch.equal(got, want), name
    return program


@pytest.mark.filterwarnings("ignore:.*the tensor is dequantized")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "kind", ["float8_current", "mxfp8", "blockwise_2d", "nvfp4", "identity", "hybrid_nvfp4_mxfp8"]
)
def test_operators_take_tensors_that_are_quantized_in_the_program(kind: str, strict: bool) -> None:
    x = sample(256, 256)
    expected = Steps(kind, list(OPERATORS.values()))(x)
    decomposed = export_each(kind, OPERATORS, strict).run_decompositions()
    targets = {str(node.target) for node in decomposed.graph.nodes}
    assert not {"narrowfloat.tensor.default", "narrowfloat.buffers.default"} & targets
    for name, got, want in zip(OPERATORS, decomposed.module()(x), expected, strict=True):
        assert torch.equal(got, want), name


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
def test_new_data_of_a_tensor_is_exported(kind: str) -> None:
    export_each(kind, {"rebound": rebound}, strict=False)  # strict export, by Dynamo, refuses it


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4", "hybrid_nvfp4_mxfp8"])
def test_a_program_returns_quantized_tensors(kind: str, strict: bool) -> None:
    module, x = Steps(kind, [lambda q, w, x: q(x)]), sample(256, 256)
    (expected,) = module(x)
    program = torch.export.export(module, (x,), strict=strict)
    for run in (program.module(), reloaded(program)):
        (made,) = run(x)
        assert type(made) is type(expected)
        assert_same_buffers(made.detach(), expected.detach(), kind)


@pytest.mark.parametrize("strict", [False, True])
def test_delayed_scaling_keeps_its_scale_in_a_program(strict: bool) -> None:
    module, x = Steps("float8_delayed", []), sample(256, 256)
    module.quantizer.scale.fill_(0.5)
    module.steps = [lambda q, w, x: q(x).dequantize(), OPERATORS["mul"], OPERATORS["matmul"]]
    expected = module(x)
    module.quantizer.amax.zero_()
    program = torch.export.export(module, (x,), strict=strict)
    assert module.quantizer.amax == 0
    for run in (program.module(), reloaded(program)):
        assert all(map(torch.equal, run(x), expected))


def test_a_hybrid_tensor_with_a_delayed_scale_is_decoded_in_a_program() -> None:
    module, x = Steps("float8_delayed", [lambda q, w, x: q(x).dequantize()]), sample(256, 256)
    module.quantizer = nfp.HybridQuantizer(
        rowwise_quantizer=delayed(scale=0.5), columnwise_quantizer=ALL["mxfp8"]()
    )
    (expected,) = module(x)
    program = torch.export.export(module, (x,))
    assert torch.equal(program.module()(x)[0], expected)


def test_the_structure_of_a_tensor_names_registered_classes_and_dtypes_only() -> None:
    program = torch.export.export(Steps("mxfp8", [OPERATORS["mul"]]), (sample(256, 256),))
    node = next(n for n in program.graph.nodes if "narrowfloat.tensor" in str(n.target))
    buffers = [torch.empty(b.meta["val"].shape, dtype=torch.uint8) for b in node.args[0]]
    for old, new, message in (
        ("narrowfloat.pytorch.tensor.mxfp8_tensor.MXFP8Quantizer", "os.system",
         "narrowfloat::tensor: 'os.system' must be a class that register_family() has registered "
         "before the program runs"),
        ('"float32"', '"load"',
         "narrowfloat::tensor: the nominal type must be a dtype, got 'load'"),
    ):  # fmt: skip
        structure = node.args[2].replace(old, new)
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            torch.ops.narrowfloat.tensor(buffers, [256, 256], structure)


def test_delayed_scaling_is_exported_but_not_decomposed() -> None:
    """Checks PyTorch's error: decomposed programs may only change buffers of the module."""
    layer, x = nfp.Linear(64, 64), sample(64, 64)
    with torch.no_grad(), nfp.autocast(recipe=DelayedScaling()):
        expected = layer(x)
        program = torch.export.export(layer, (x,))
        assert torch.equal(reloaded(program)(x), expected)
        with pytest.raises(RuntimeError, match="is mutated in the forward method"):
            program.run_decompositions()


@pytest.mark.parametrize("no_grad", [False, True])
def test_delayed_scaling_of_a_layer_that_never_ran_is_exported(no_grad: bool) -> None:
    """Checks that the state with loaded scales, made in the export, remains after it."""
    x, recipe = sample(64, 64), DelayedScaling(amax_history_len=2)
    trained, fresh = nfp.Linear(64, 64), nfp.Linear(64, 64)
    for _ in range(3):
        with nfp.autocast(recipe=recipe):
            trained(x).sum().backward()
    fresh.load_state_dict(trained.state_dict())
    with nfp.autocast(recipe=recipe):
        expected = trained(x)
        with torch.set_grad_enabled(not no_grad):
            program = torch.export.export(fresh, (x,))
    assert torch.equal(program.module()(x), expected)
    for layer in (fresh, nfp.Linear(64, 64)):
        with nfp.autocast(recipe=recipe):
            layer(x).sum().backward()
    assert float(fresh.fp8_meta["scaling_fwd"].scale[0]) != 1


@pytest.mark.parametrize("allow_non_fake_inputs", [False, True])
def test_delayed_scaling_of_fake_layers_takes_no_steps(allow_non_fake_inputs: bool) -> None:
    x, layer = sample(64, 64), nfp.Linear(64, 64)
    with nfp.autocast(recipe=DelayedScaling()):
        layer(x)
    history = layer.fp8_meta["scaling_fwd"].amax_history.clone()
    with FakeTensorMode(allow_non_fake_inputs=allow_non_fake_inputs):
        fake = nfp.Linear(64, 64)
        with nfp.autocast(recipe=DelayedScaling()):
            y = fake(torch.empty(64, 64))
        y.sum().backward()
    assert torch.equal(layer.fp8_meta["scaling_fwd"].amax_history, history)
    with nfp.autocast(recipe=DelayedScaling()):
        layer(x)


def test_weights_that_learn_are_exported_but_not_decomposed() -> None:
    module, x = Exported("mxfp8"), sample(64, 64)
    module.weight.requires_grad_(True)
    program = torch.export.export(module, (x,))
    assert torch.equal(reloaded(program)(x), module(x))
    with pytest.raises(RuntimeError, match="Only Tensors of floating point"):
        program.run_decompositions()


class Bytes(torch.Tensor):
    """A tensor subclass over codes that does not use the package."""

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
    """Checks that PyTorch makes each inner tensor a parameter with the outer requires_grad."""
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
