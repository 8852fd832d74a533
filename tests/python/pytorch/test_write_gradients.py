# SPDX-License-Identifier: Apache-2.0
"""Tests the gradients of writes to quantized tensors, and the count of writes in `_version`.

The expected results are those of a plain tensor.
"""

from collections.abc import Callable

import pytest
import torch
from families import ALL
from narrowfloat.pytorch import tex

from narrowfloat import pytorch as nfp

View = Callable[[torch.Tensor], torch.Tensor]
Write = Callable[[nfp.QuantizedTensor, torch.Tensor], object]

VIEWS: dict[str, View] = {
    "view": lambda t: t.view(64, 256),
    "view of other dimensions": lambda t: t.view(2, 32, 256),
    "view as it is": lambda t: t.view(t.shape),
    "part of a view": lambda t: t.view(64, 256)[:32],
    "reshape": lambda t: t.reshape(64, 256),
    "reshape to other dimensions": lambda t: t.reshape(2, 32, 256),
    "expand_as": lambda t: t.expand_as(t),
    "alias": torch.ops.aten.alias,
}
every_view = pytest.mark.parametrize("view", VIEWS)
# Here 128x128 tiles have neither parts nor views of other dimensions that can be written.
KINDS = [name for name in ALL if name != "blockwise_2d"]
every = pytest.mark.parametrize("kind", KINDS)


def cases(kind: str) -> list[str]:
    return [v for v in VIEWS if not (kind == "blockwise_1d" and v == "part of a view")]


every_case = pytest.mark.parametrize(
    ("kind", "view"),
    [(kind, view) for kind in KINDS for view in cases(kind)]
    + [("blockwise_2d", name) for name in ("view", "view as it is", "reshape", "expand_as")],
)


def ones(requires_grad: bool = False) -> torch.Tensor:
    return torch.ones(64, 256, requires_grad=requires_grad)


def values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.dequantize() if isinstance(tensor, nfp.QuantizedTensor) else tensor


def gradient(make: View, write: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Returns the gradient of x in sum(write(copy)), where copy is a clone of make(x)."""
    x = ones(requires_grad=True)
    values(write(make(x).clone())).sum().backward()
    assert x.grad is not None
    return x.grad


@every_case
def test_a_write_to_a_view_has_its_gradient(kind: str, view: str) -> None:
    def write(copy: torch.Tensor) -> torch.Tensor:
        VIEWS[view](copy).mul_(0.5)
        return copy

    assert torch.equal(gradient(ALL[kind](), write), gradient(lambda x: x * 1, write))


@every_case
def test_a_view_has_the_gradient_of_a_write_to_the_whole(kind: str, view: str) -> None:
    def write(copy: torch.Tensor) -> torch.Tensor:
        seen = VIEWS[view](copy)
        copy.mul_(0.5)
        return seen

    assert torch.equal(gradient(ALL[kind](), write), gradient(lambda x: x * 1, write))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "nvfp4", "hybrid_mxfp8_identity"])
@pytest.mark.parametrize("view", ["view of other dimensions", "reshape", "expand_as"])
def test_a_write_to_a_view_in_a_graph_has_its_gradient(kind: str, view: str, backend: str) -> None:
    torch._dynamo.reset()
    quantizer = ALL[kind]()

    @torch.compile(backend=backend, fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        copy = quantizer(x).clone()
        VIEWS[view](copy).mul_(0.5)
        return copy.dequantize().sum()

    x = ones(requires_grad=True)
    step(x).backward()
    assert torch.equal(x.grad, ones() * 0.5)


@every_case
def test_a_view_of_a_parameter_is_not_written(kind: str, view: str) -> None:
    parameter = torch.nn.Parameter(ALL[kind]()(ones()).detach())
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        VIEWS[view](parameter).zero_()
    assert torch.equal(parameter.dequantize(), ones())


OPERATORS: dict[str, Write] = {
    "mul_": lambda t, x: t.mul_(0.5),
    "zero_": lambda t, x: t.zero_(),
    "copy_": lambda t, x: t.copy_(x),
    "copy_ of codes": lambda t, x: t.copy_(t.clone()),
    "out": lambda t, x: torch.add(x, x, out=t),
    "item": lambda t, x: t.__setitem__(3, 0.5),
    "foreach_mul": lambda t, x: torch._foreach_mul_([t], 0.5),
    "foreach_add": lambda t, x: torch._foreach_add_([t], [x]),
    "foreach_lerp": lambda t, x: torch._foreach_lerp_([t], [x], 0.5),
    "foreach_copy": lambda t, x: torch._foreach_copy_([t], [x]),
    "foreach_zero": lambda t, x: torch._foreach_zero_([t]),
    "foreach_neg": lambda t, x: torch._foreach_neg_([t]),
    "foreach_addcdiv": lambda t, x: torch._foreach_addcdiv_([t], [x], [x]),
}
ALIASES: dict[str, Write] = {
    "detach": lambda t, x: t.detach().zero_(),
    "torch.detach": lambda t, x: torch.detach(t).zero_(),
    "view": lambda t, x: t.view(64, 256).zero_(),
    "reshape": lambda t, x: t.reshape(64, 256).zero_(),
    "expand_as": lambda t, x: t.expand_as(t).zero_(),
}
QUANTIZERS: dict[str, Write] = {
    "quantize_": lambda t, x: t.quantize_(x),
    "a flag of 0": lambda t, x: t.quantize_(x, noop_flag=torch.zeros(1)),
    "a flag of 2": lambda t, x: t.quantize_(x, noop_flag=torch.full((1,), 2.0)),
    "out of a quantizer": lambda t, x: t._quantizer.quantize(x, out=t),
    "output of tex": lambda t, x: tex.quantize(x, t._quantizer, t),
}
COUNTED = OPERATORS | ALIASES | QUANTIZERS


@pytest.mark.parametrize("write", COUNTED)
@pytest.mark.parametrize("kind", ALL)
def test_a_write_is_counted_once(kind: str, write: str) -> None:
    tensor = ALL[kind]()(ones()).detach()
    before = tensor._version
    with torch.no_grad():
        COUNTED[write](tensor, ones())
    assert tensor._version == before + 1
    if write in OPERATORS | ALIASES:
        plain = ones()
        COUNTED[write](plain, ones())
        assert plain._version == 1


@pytest.mark.parametrize("kind", ALL)
def test_what_leaves_the_values_is_not_counted(kind: str) -> None:
    tensor = ALL[kind]()(ones()).detach()
    before = tensor._version
    tensor.quantize_(ones() * 0.5, noop_flag=torch.ones(1))
    tex.quantize(ones() * 0.5, tensor._quantizer, tensor, torch.ones(1))
    if kind != "blockwise_2d" and kind != "blockwise_1d":  # `data` is the tensor itself
        tensor.data.zero_()
    assert tensor._version == before


@pytest.mark.parametrize("write", COUNTED)
@pytest.mark.parametrize("kind", ALL)
def test_tensors_of_inference_mode_are_written(kind: str, write: str) -> None:
    with torch.inference_mode():
        tensor, expected = (ALL[kind]()(ones()) for _ in range(2))
        COUNTED[write](tensor, ones() * 0.5)
    with torch.no_grad():
        COUNTED[write](normal := ALL[kind]()(ones()), ones() * 0.5)
    assert expected.is_inference() and torch.equal(tensor.dequantize(), normal.dequantize())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("kind", ALL)
def test_a_step_between_two_backward_passes_raises(
    kind: str, optimizer: type[torch.optim.Optimizer]
) -> None:
    parameter = torch.nn.Parameter(ALL[kind]()(ones()).detach())
    x = ones(requires_grad=True)
    loss = (x * parameter).sum()
    loss.backward(retain_graph=True)
    optimizer([parameter], lr=0.5, foreach=True).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("write", ["quantize_", "out of a quantizer", "output of tex", "view"])
@pytest.mark.parametrize("kind", ALL)
def test_a_backward_pass_after_a_write_raises(kind: str, write: str) -> None:
    x = ones(requires_grad=True)
    tensor = ALL[kind]()(ones()).detach()
    loss = (x * tensor).sum()
    COUNTED[write](tensor, ones() * 0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# The context misses writes to rows of a plain tensor, and an IdentityTensor's row is plain.
@pytest.mark.parametrize(
    ("kind", "write"),
    [(kind, write) for kind in ALL for write in COUNTED if (kind, write) != ("identity", "item")],
)
def test_a_backward_pass_uses_copies_of_written_tensors(kind: str, write: str) -> None:
    x = ones(requires_grad=True)
    tensor = ALL[kind]()(ones()).detach()
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        loss = (x * tensor).sum() + torch.nn.functional.linear(x, tensor).sum()
        with torch.no_grad():
            COUNTED[write](tensor, ones() * 0.5)
        loss.backward()
    assert torch.equal(x.grad, ones() + len(tensor))
