# SPDX-License-Identifier: Apache-2.0
"""Tests operators that write in place, and that writes which would be lost are refused."""

import copy
import io
import pickle
import re
from collections.abc import Callable

import pytest
import torch
from families import ALL, assert_same_buffers, sample, snapshot
from narrowfloat.pytorch._read_only import ReadOnlyValues, effect_of

from narrowfloat import pytorch as nfp

aten = torch.ops.aten
every = pytest.mark.parametrize("kind", list(ALL))


def quantized(kind: str, *shape: int) -> nfp.QuantizedTensor:
    return ALL[kind]()(sample(*shape)).detach()


LOST: dict[str, Callable[[torch.Tensor], object]] = {
    "transpose": lambda t: t.t().zero_(),
    "view of a transpose": lambda t: t.t()[0].fill_(1),
    "permuted": lambda t: t.permute(1, 0).copy_(torch.ones(256, 128)),
    "expanded": lambda t: t.expand(2, 128, 256)[0].add_(1),
    "steps": lambda t: t[::2].zero_(),
    "rows off the blocks": lambda t: t[5:9].zero_(),
    "one column": lambda t: t[:, 3].zero_(),
    "foreach": lambda t: torch._foreach_add_([t.diagonal()], 1),
    "out": lambda t: torch.mul(2, 3, out=t.diagonal()),
    "data": lambda t: t.t().data.zero_(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", list(LOST))
@every
def test_a_write_to_a_view_arrives_or_is_refused(kind: str, name: str) -> None:
    tensor = quantized(kind)
    plain = tensor.dequantize()
    before = snapshot(tensor)
    try:
        LOST[name](tensor)
    except RuntimeError as error:
        assert "are read-only, because a write to them would not reach the tensor" in str(error)
        assert_same_buffers(tensor, before, "a refused write")
        return
    LOST[name](plain)
    assert torch.equal(tensor.dequantize(), plain), "a write that was not refused"


def test_the_refusal_names_operator_tensor_and_rule() -> None:
    with pytest.raises(
        RuntimeError,
        match="^"
        + re.escape(
            "aten.zero_.default: the values that aten.t.default gave of a MXFP8Tensor are "
            "read-only, because a write to them would not reach the tensor; write to the tensor, "
            "or to blocks of it"
        )
        + "$",
    ):
        quantized("mxfp8").t().zero_()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["mxfp8", "blockwise_1d", "nvfp4", "hybrid_nvfp4_mxfp8"])
def test_view_with_plain_values_is_read_only(kind: str) -> None:
    tensor = quantized(kind)
    before = snapshot(tensor)
    with pytest.raises(RuntimeError, match="are read-only"):
        tensor.view(-1)[:5] = 1
    assert_same_buffers(tensor, before, "a refused write")


def test_read_only_values_read_like_any_tensor() -> None:
    tensor = quantized("mxfp8")
    values, plain = tensor.t(), tensor.dequantize().t()
    assert type(values) is ReadOnlyValues and type(values.detach()) is ReadOnlyValues
    for read in (lambda v: v + 1, lambda v: v.clone(), lambda v: v.to(torch.float64), torch.sin):
        assert type(read(values)) is torch.Tensor and torch.equal(read(values), read(plain))
    assert values.tolist() == plain.tolist() and values[3, 5].item() == plain[3, 5].item()
    array = values.numpy()
    assert not array.flags.writeable and (array == plain.numpy()).all()
    with pytest.raises(BufferError, match=r"read-only.*; clone\(\) them to pass them on$"):
        torch.from_dlpack(values)
    assert repr(values).startswith("ReadOnlyValues(tensor(")
    file = io.BytesIO()
    torch.save(values, file)
    file.seek(0)
    copies = [copy.deepcopy(values), pickle.loads(pickle.dumps(values)), torch.load(file)]
    for copied in copies:
        assert type(copied) is torch.Tensor and torch.equal(copied, plain)
    again = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)
    assert_same_buffers(again(values).detach(), again(plain).detach(), "quantized again")


@every
@pytest.mark.parametrize("view", [lambda t: t.t(), lambda t: t.expand(2, 128, 256)])
def test_the_memory_of_read_only_values(
    kind: str, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Checks methods that access memory without an operator. A transpose has no memory."""
    values = view(quantized(kind))
    before = values.clone()
    for method, call in {
        "apply_": lambda: values.apply_(lambda a: a),
        "map_": lambda: values.map_(values, lambda a, b: a),
        "map2_": lambda: values.map2_(values, values, lambda a, b, c: a),
    }.items():
        with pytest.raises(RuntimeError, match=f"^{method}: the values that .* are read-only"):
            call()
    assert not values.is_shared()
    assert values.share_memory_() is values and values.is_shared()
    assert torch.equal(values.clone(), before)
    stored = 0 if values.transposed is not None else 128 * 256 * values.element_size()
    assert len(bytes(values.untyped_storage())) == stored


@pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "nvfp4", "identity"])
def test_gradients_pass_through_read_only_values(kind: str) -> None:
    weight = torch.nn.Parameter(quantized(kind))
    x = sample(3, 256, seed=9)
    torch.nn.functional.linear(x, weight).sum().backward()
    first, weight.grad = weight.grad, None
    (x @ weight.t()).sum().backward()
    assert type(first) is torch.Tensor and torch.equal(first, weight.grad)
    assert torch.equal(first, torch.ones(3, 128).t() @ x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_read_only_values_in_a_graph(backend: str) -> None:
    tensor, x = quantized("float8_current"), sample(3, 256, seed=9)
    product = torch.compile(lambda x, w: x @ w.t(), backend=backend, fullgraph=True)
    assert torch.equal(product(x, tensor), x @ tensor.t())
    values = torch.compile(lambda w: w.t(), backend=backend, fullgraph=True)(tensor)
    with pytest.raises(RuntimeError, match="are read-only"):
        values.zero_()


@pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "nvfp4", "hybrid_nvfp4_mxfp8"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_graph_gives_the_transpose_of_a_parameter(kind: str, backend: str) -> None:
    tensor, x = quantized(kind), sample(3, 256, seed=9)
    weights = [torch.nn.Parameter(tensor.clone().detach()) for _ in range(2)]

    def product(weight: torch.Tensor) -> torch.Tensor:
        transpose = weight.t()
        torch._dynamo.graph_break()
        return x @ transpose

    made = torch.compile(product, backend=backend)(weights[0])
    expected = product(weights[1])
    assert torch.equal(made, expected)
    for result in (made, expected):
        result.sum().backward()
    assert torch.equal(weights[0].grad, weights[1].grad)

    transpose = torch.compile(lambda w: w.t(), backend=backend)(weights[0])
    assert type(transpose) is type(tensor.t()) and torch.equal(transpose + 0, tensor.t() + 0)
    weights[0].grad = None
    transpose.backward(weights[1].detach().t())
    assert torch.equal(weights[0].grad, tensor.dequantize())


@every
def test_in_place_operators_return_the_tensor(kind: str) -> None:
    tensor, x = quantized(kind), sample(seed=12)
    assert tensor.add_(1) is tensor and tensor.mul_(2).sub_(1) is tensor
    assert torch.add(x, 1, out=tensor) is tensor
    assert aten.add_.Tensor(tensor, x) is tensor and aten.add.out(x, x, out=tensor) is tensor
    assert tensor.copy_(x) is tensor and tensor.zero_() is tensor and tensor.detach_() is tensor


def test_results_beside_written_arguments_are_kept() -> None:
    tensor, x = quantized("identity", 32), sample(4, 32)
    out, *_ = aten._native_batch_norm_legit(x, None, None, tensor, torch.ones(32), True, 0.1, 1e-5)
    assert torch.equal(out, torch.nn.functional.batch_norm(x, None, None, training=True))


@pytest.mark.parametrize("kind", ["float8_current", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("way", ["foreach", "fused", "plain"])
def test_optimizers_write_every_weight(kind: str, way: str) -> None:
    options = {"foreach": way == "foreach", "fused": way == "fused"}
    weights = [torch.nn.Parameter(quantized(kind)) for _ in range(2)]
    wanted = []
    for index, weight in enumerate(weights):
        weight.grad = sample(seed=40 + index)
        plain = torch.nn.Parameter(weight.dequantize().detach())
        plain.grad = weight.grad.clone()
        torch.optim.SGD([plain], lr=0.5, foreach=False).step()
        wanted.append(ALL[kind]()(plain.detach()).detach())
    torch.optim.SGD(weights, lr=0.5, **options).step()
    for weight, expected in zip(weights, wanted, strict=True):
        if way != "fused":  # the fused product and sum are rounded once
            assert_same_buffers(weight.detach(), expected, way)
        assert not torch.equal(weight.detach().dequantize(), quantized(kind).dequantize())


def test_nothing_is_written_if_one_of_several_refuses() -> None:
    whole = quantized("float8_current", 8, 6)
    first, second, plain = quantized("mxfp8"), whole[:4], torch.ones(3)
    before = [snapshot(first), snapshot(whole)]
    with pytest.raises(ValueError, match="shares its scale with the rest"):
        torch._foreach_add_([plain, first, second], 1e6)
    assert_same_buffers(first, before[0], "the first of three")
    assert_same_buffers(whole, before[1], "the third of three")
    assert torch.equal(plain, torch.ones(3))
    bare = quantized("float8_current", 8, 6)
    bare._quantizer = None
    with pytest.raises(ValueError, match="has no quantizer"):
        torch._foreach_add_([plain, first, bare], 1.0)
    assert torch.equal(plain, torch.ones(3))
    assert_same_buffers(first, before[0], "before one without a quantizer")


@every
def test_a_tensor_keeps_its_geometry_in_place(kind: str) -> None:
    tensor = quantized(kind)
    before = snapshot(tensor)
    for write in (
        lambda t: t.t_(),
        lambda t: t.unsqueeze_(0),
        lambda t: t.set_(torch.ones(128, 256)),
        lambda t: torch.add(torch.ones(2), 1, out=t),
    ):
        with pytest.raises((NotImplementedError, ValueError)):
            write(tensor)
        assert_same_buffers(tensor, before, "a refused change of shape")


@every
def test_collectives_without_a_row_raise(kind: str) -> None:
    tensor = quantized(kind)
    with pytest.raises(
        NotImplementedError,
        match=rf"^_c10d_functional.all_reduce.default: a {type(tensor).__name__} is not supported "
        r"in this collective, because codes under different scales do not add up; communicate "
        r"dequantize\(\), or its buffers$",
    ):
        torch.ops._c10d_functional.all_reduce(tensor, "sum", "0")
    with pytest.raises(
        NotImplementedError,
        match=r"is not supported in this collective, because it moves one buffer, which would part "
        r"codes from their scales; communicate dequantize\(\), or its buffers$",
    ):
        torch.ops._c10d_functional.all_to_all_single(tensor, [64, 64], [64, 64], "0")


def test_effects_come_from_schemas() -> None:
    assert effect_of(aten.add_.Tensor).returned == (0,)
    assert effect_of(aten.t.default).aliases and not effect_of(aten.add_.Tensor).aliases
    assert effect_of(aten.sort.values).returned == (0, 1)
    assert effect_of(aten.mm.default)[:3] == ((), False, (None,))


def statistics(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    return ALL[kind]()(torch.zeros(16)).detach(), ALL[kind]()(torch.ones(16)).detach()


@pytest.mark.parametrize("kind", ["float8_delayed", "float8_current", "identity"])
def test_batch_norm_writes_its_statistics(kind: str) -> None:
    layer, plain = torch.nn.BatchNorm1d(16), torch.nn.BatchNorm1d(16)
    layer.running_mean, layer.running_var = statistics(kind)
    x = sample(64, 16) + 3
    for _ in range(2):  # autograd counts no write, so both backward passes run
        plain.running_mean, plain.running_var = [s.dequantize() for s in layer.buffers()][:2]
        outputs = layer(x.requires_grad_()), plain(x)
        assert torch.equal(*outputs)
    outputs[0].sum().backward()
    for name in ("running_mean", "running_var"):
        own, other = getattr(layer, name), getattr(plain, name)
        assert type(own) is type(statistics(kind)[0]) and own.dequantize().mean() > 0.5
        assert torch.equal(own.dequantize(), ALL[kind]()(other).dequantize()), name
    before = [snapshot(own) for own in (layer.running_mean, layer.running_var)]
    layer.eval()(x)
    for own, old in zip((layer.running_mean, layer.running_var), before, strict=True):
        assert_same_buffers(own, old, "an evaluation")


def test_batch_norm_of_statistics_that_cannot_be_written() -> None:
    mean = quantized("float8_current", 16, 16).t()[0]
    norm = torch.nn.functional.batch_norm
    with pytest.raises(RuntimeError, match=r"native_batch_norm.*are read-only"):
        norm(sample(64, 16), mean, torch.ones(16), training=True)
    got = norm(sample(64, 16), mean, torch.ones(16))
    torch.testing.assert_close(got, norm(sample(64, 16), mean.clone(), torch.ones(16)))


def test_every_operator_with_statistics_is_listed() -> None:
    """Checks the operators that have running statistics without a mark in their schemas."""
    reads = ("backward", "no_update", "no_training", "functional", "impl_index")
    composite = ("aten::batch_norm", "aten::instance_norm")
    found = []
    for schema in torch._C._jit_get_all_schemas():
        named = {argument.name: argument.alias_info for argument in schema.arguments}
        if "running_mean" not in named or named["running_mean"] is not None:
            continue
        if schema.name in composite or any(word in schema.name for word in reads):
            continue
        packet = getattr(aten, schema.name.removeprefix("aten::"))
        operator = getattr(packet, schema.overload_name or "default")
        written = [name for _, name in effect_of(operator).written]
        assert written[-2:] == ["running_mean", "running_var"], operator
        outputs = [] if operator is packet.default else written[:-2]
        assert [name for _, name in effect_of(operator, False).written] == outputs, operator
        found.append(operator)
    assert len(found) == 12
