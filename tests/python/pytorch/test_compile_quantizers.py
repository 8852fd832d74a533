# SPDX-License-Identifier: Apache-2.0
"""Tests that quantizers, products and training steps compile to one graph with eager's bytes."""

from collections.abc import Callable

import pytest
import torch
from families import ALL, SCHEMES, VALUES, assert_same_buffers, buffers, delayed, sample
from narrowfloat.pytorch.cpp_extensions import general_gemm
from torch._dynamo.testing import CompileCounterWithBackend

from narrowfloat import pytorch as nfp

kinds = pytest.mark.parametrize(
    "kind",
    ["float8_delayed", "float8_current", "mxfp8", "blockwise_2d", "nvfp4", "hybrid_mxfp8_identity"],
)
TRANSFORMED = {
    "nvfp4_rht": lambda: nfp.NVFP4Quantizer(with_rht=True, with_post_rht_amax=True),
    "nvfp4_rht_2d": lambda: nfp.NVFP4Quantizer(
        with_rht=True, with_post_rht_amax=True, with_2d_quantization=True
    ),
    "mxfp8_swizzled": lambda: swizzled(nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)),
}
EVERY: dict[str, Callable[[], nfp.Quantizer]] = {**ALL, **TRANSFORMED}


def swizzled(quantizer: nfp.Quantizer) -> nfp.Quantizer:
    quantizer.optimize_for_gemm = True
    return quantizer


@pytest.fixture(autouse=True)
def _without_earlier_graphs() -> None:
    torch._dynamo.reset()


def whole(function: Callable[..., object], backend: str = "aot_eager") -> Callable[..., object]:
    """Compiles `function` as one graph; a graph break is an error."""
    return torch.compile(function, backend=backend, fullgraph=True)


@pytest.mark.parametrize("kind", list(EVERY))
def test_a_graph_quantizes(kind: str) -> None:
    x = sample(dtype=torch.bfloat16)
    inside, outside = EVERY[kind](), EVERY[kind]()
    made, expected = whole(lambda t: inside(t))(x), outside(x)
    assert type(made) is type(expected) and made.dtype == expected.dtype
    assert type(made._quantizer) is type(inside)
    assert_same_buffers(made.detach(), expected.detach(), kind)
    if kind == "float8_delayed":
        assert torch.equal(inside.amax, outside.amax) and inside.amax > 0
        assert made._quantizer.scale is inside.scale


@kinds
def test_a_graph_quantizes_into_a_tensor(kind: str) -> None:
    x = sample(dtype=torch.bfloat16)
    inside, outside = ALL[kind](), ALL[kind]()
    out = ALL[kind]().make_empty(x.shape, dtype=x.dtype)
    whole(lambda t, q: inside.quantize(t, out=q))(x, out)
    assert_same_buffers(out.detach(), outside(x).detach(), kind)


@kinds
def test_a_graph_holds_a_tensor_for_a_bare_storage(kind: str) -> None:
    x = sample(dtype=torch.bfloat16, requires_grad=True)
    quantizer, outside = ALL[kind](), ALL[kind]()
    quantizer.internal = True
    made = whole(lambda t: quantizer(t))(x)
    assert isinstance(made, nfp.QuantizedTensorStorage) and not made.requires_grad
    assert_same_buffers(made, outside(x.detach()).detach(), kind)


@kinds
def test_gradients_pass_straight_through(kind: str) -> None:
    x = sample(dtype=torch.bfloat16)
    quantizer, outside = ALL[kind](), ALL[kind]()
    inner, outer = (x.clone().requires_grad_() for _ in range(2))
    made = whole(lambda t: (quantizer(t).dequantize() * t.detach()).sum())(inner)
    expected = (outside(outer).dequantize() * outer.detach()).sum()
    made.backward()
    expected.backward()
    assert torch.equal(made, expected) and torch.equal(inner.grad, outer.grad)
    assert torch.equal(inner.grad, x)


def test_nothing_breaks_the_graph() -> None:
    quantizer = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)
    explained = torch._dynamo.explain(lambda t: quantizer(t).dequantize().sum())(sample())
    assert explained.graph_break_count == 0 and explained.graph_count == 1


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_two_batch_sizes_are_one_graph(kind: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    inside, outside = ALL[kind](), ALL[kind]()
    compiled = torch.compile(
        lambda t: inside(t).dequantize(), backend=counter, fullgraph=True, dynamic=True
    )
    for rows in (256, 384, 512):  # 2 or more blocks of 128: a size of 1 is a constant
        x = sample(rows, 512, dtype=torch.bfloat16)
        assert torch.equal(compiled(x), outside(x).dequantize()), rows
    assert counter.frame_count == 1


def test_a_marked_dimension_stays_a_symbol() -> None:
    quantizer = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda t: quantizer(t), backend=counter, fullgraph=True)
    for rows in (64, 96):
        x = sample(rows, 2, 64)
        torch._dynamo.mark_dynamic(x, 0)
        assert_same_buffers(compiled(x).detach(), quantizer(x).detach(), f"{rows} rows")
    assert counter.frame_count == 1


def test_symbols_that_break_a_block_raise_as_outside() -> None:
    quantizer = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)
    compiled = torch.compile(lambda t: quantizer(t), backend="eager", dynamic=True)
    compiled(sample(64, 64))
    with pytest.raises(Exception, match="MXFP8Quantizer"):
        compiled(sample(33, 64))


def test_stochastic_rounding_draws_as_outside() -> None:
    def make() -> nfp.Quantizer:
        return nfp.NVFP4Quantizer(stochastic_rounding=True)

    x = sample(dtype=torch.bfloat16)
    inside, outside = make(), make()
    compiled = whole(lambda t: (inside(t), inside(t)))
    torch.manual_seed(3)
    made = compiled(x)
    torch.manual_seed(3)
    expected = outside(x), outside(x)
    for got, want in zip(made, expected, strict=True):
        assert_same_buffers(got.detach(), want.detach(), "stochastic")
    assert not torch.equal(made[0]._rowwise_data, made[1]._rowwise_data)


@pytest.mark.parametrize("kind", ["mxfp8", "blockwise_2d", "float8_delayed", "nvfp4"])
def test_graphs_take_quantized_tensors(kind: str) -> None:
    quantizer = ALL[kind]()
    weight = quantizer(sample(256, 128, dtype=torch.bfloat16)).detach()
    other = quantizer(sample(256, 128, dtype=torch.bfloat16, seed=1)).detach()
    x = sample(128, 256, dtype=torch.bfloat16)

    def consume(x: torch.Tensor, w: nfp.QuantizedTensor) -> tuple[torch.Tensor, ...]:
        return x @ w, torch.nn.functional.linear(x, w.t()), w.dequantize(torch.float32)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(consume, backend=counter, fullgraph=True)
    for w in (weight, other):
        for got, want in zip(compiled(x, w), consume(x, w), strict=True):
            assert torch.equal(got, want)
    assert counter.frame_count == 1


Context = torch.autograd.function.FunctionCtx


class QuantizedLinear(torch.autograd.Function):
    """Computes y = x w^T. Quantizes x, w and the gradient of y."""

    @staticmethod
    def forward(
        ctx: Context,
        x: torch.Tensor,
        w: torch.Tensor,
        quantize_x: nfp.Quantizer,
        quantize_w: nfp.Quantizer,
        quantize_g: nfp.Quantizer,
    ) -> torch.Tensor:
        xq, wq = quantize_x(x.detach()), quantize_w(w.detach())
        ctx.quantize_g = quantize_g
        saved, ctx.tensor_objects = nfp.prepare_for_saving(xq, wq)
        ctx.save_for_backward(*saved)
        return general_gemm(wq, xq, x.dtype)[0]

    @staticmethod
    def backward(ctx: Context, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        xq, wq = nfp.restore_from_func_ctx(ctx)
        g = ctx.quantize_g(dy)
        dx = general_gemm(wq, g, dy.dtype, layout="NN", grad=True)[0]
        dw = general_gemm(xq, g, dy.dtype, layout="NT", grad=True)[0]
        return dx, dw, None, None, None


class Network(torch.nn.Module):
    """Two quantized layers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(sample(128, 256, dtype=torch.bfloat16, seed=1) / 16)
        self.second = torch.nn.Parameter(sample(256, 128, dtype=torch.bfloat16, seed=2) / 16)
        self.quantizers = [ALL[kind]() for _ in range(6)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(QuantizedLinear.apply(x, self.first, *self.quantizers[:3]))
        y = QuantizedLinear.apply(hidden, self.second, *self.quantizers[3:])
        return (y.float() - x.float()).square().mean()


@pytest.mark.parametrize(
    "kind", ["float8_delayed", "float8_current", "mxfp8", "blockwise_1d", "nvfp4"]
)
def test_a_network_trains_in_one_graph(kind: str) -> None:
    inside, outside = Network(kind), Network(kind)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(inside, backend=counter, fullgraph=True)
    optimizers = [torch.optim.AdamW(net.parameters(), lr=1e-2) for net in (inside, outside)]
    losses = []
    for step in range(3):
        x = sample(128, 256, dtype=torch.bfloat16, seed=step)
        for net, optimizer in zip((compiled, outside), optimizers, strict=True):
            optimizer.zero_grad()
            loss = net(x)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[0::2] == losses[1::2] and losses[-1] < losses[0]
    for own, other in zip(inside.parameters(), outside.parameters(), strict=True):
        assert torch.equal(own, other)
    assert counter.frame_count == 1
    if kind == "float8_delayed":
        for own, other in zip(inside.quantizers, outside.quantizers, strict=True):
            assert torch.equal(own.amax, other.amax)


def test_a_whole_step_is_one_graph() -> None:
    """Compiles forward, the gradient of w for dy = y, and the update of w."""
    quantizer = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        xq, wq = quantizer(x), quantizer(w)
        y = general_gemm(wq, xq, x.dtype)[0]
        g = quantizer(y)
        return w - 0.01 * general_gemm(xq, g, x.dtype, layout="NT", grad=True)[0]

    x, w = sample(64, 128), sample(96, 128, seed=1)
    assert torch.equal(whole(step)(x, w), step(x, w))


@pytest.mark.parametrize("quantize_output", [False, True])
@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
def test_products_in_a_graph(layout: str, quantize_output: bool) -> None:
    quantizer = nfp.Float8CurrentScalingQuantizer(nfp.DType.kFloat8E4M3)
    sizes = {"TN": ((32, 64), (48, 64)), "NN": ((64, 32), (48, 64)), "NT": ((64, 32), (64, 48))}
    a, b = (quantizer(sample(*size, seed=seed)).detach() for seed, size in enumerate(sizes[layout]))
    out_quantizer = delayed(scale=0.25) if quantize_output else None
    bias = None if layout != "TN" else sample(32, seed=7)

    def product(a: nfp.QuantizedTensor, b: nfp.QuantizedTensor) -> torch.Tensor:
        return general_gemm(
            a, b, torch.float32, quantization_params=out_quantizer, layout=layout, bias=bias
        )[0]

    expected = product(a, b)
    nodes: list[object] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[object]) -> torch.fx.GraphModule:
        nodes.extend(node.target for node in graph.graph.nodes)
        return graph

    from torch._dynamo.backends.common import aot_autograd

    made = torch.compile(product, backend=aot_autograd(fw_compiler=keep), fullgraph=True)(a, b)
    assert torch.ops.narrowfloat.qgemm.default in nodes
    if quantize_output:
        assert_same_buffers(made.detach(), expected.detach(), layout)
    else:
        assert torch.equal(made, expected)


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_products_have_symbolic_sizes(alpha: float) -> None:
    quantizer = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)
    w = sample(96, 64)

    def product(x: torch.Tensor) -> torch.Tensor:
        return general_gemm(quantizer(w), quantizer(x), x.dtype, alpha=alpha)[0]

    compiled = torch.compile(product, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (160, 224):
        x = sample(rows, 64)
        assert torch.equal(compiled(x), product(x)), rows


def test_a_product_of_symbolic_sizes_is_compiled_once() -> None:
    quantizer, w = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3), sample(96, 64)
    counter = CompileCounterWithBackend("aot_eager")

    def product(x: torch.Tensor) -> torch.Tensor:
        return general_gemm(quantizer(w), quantizer(x), x.dtype)[0]

    compiled = torch.compile(product, backend=counter, fullgraph=True, dynamic=True)
    for rows in (32, 160, 224):
        x = sample(rows, 64)
        assert torch.equal(compiled(x), product(x)), rows
    assert counter.frame_count == 1


def test_products_add_to_what_is_there_in_a_graph() -> None:
    quantizer = nfp.MXFP8Quantizer(nfp.DType.kFloat8E4M3)
    a, b = (quantizer(sample(64, 64, seed=seed)).detach() for seed in range(2))
    inside, outside = sample(64, 64, seed=3), sample(64, 64, seed=3)

    def add(out: torch.Tensor) -> None:
        general_gemm(a, b, out=out, accumulate=True)

    whole(add)(inside)
    add(outside)
    assert torch.equal(inside, outside)


def test_what_cannot_be_traced_breaks_the_graph() -> None:
    class Own(nfp.MXFP8Quantizer):
        """A class that is not registered for graphs."""

        def quantize_impl(self, tensor: torch.Tensor) -> nfp.QuantizedTensor:
            print(end="")
            return super().quantize_impl(tensor)

    quantizer = Own(nfp.DType.kFloat8E4M3)
    x = sample()
    made = torch.compile(lambda t: quantizer.quantize(t + 1), backend="eager")(x)
    assert_same_buffers(made.detach(), quantizer(x + 1).detach(), "own class")


def has_compiler() -> bool:
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        return bool(get_cpp_compiler())
    except Exception:
        return False


@pytest.mark.skipif(not has_compiler(), reason="inductor needs a C++ compiler")
def test_inductor_gives_the_bytes_of_eager() -> None:
    quantizers = [EVERY[kind]() for kind in ("mxfp8", "nvfp4_rht", "float8_current")]
    stochastic = nfp.NVFP4Quantizer(stochastic_rounding=True)

    def quantize(x: torch.Tensor) -> list[object]:
        made = [quantizer(x) for quantizer in (*quantizers, stochastic)]
        return [*made, general_gemm(made[0], made[0], x.dtype)[0]]

    x = sample(128, 128, dtype=torch.bfloat16)
    torch.manual_seed(5)
    *tensors, product = whole(quantize, "inductor")(x)
    torch.manual_seed(5)
    *expected, wanted = quantize(x)
    for got, want in zip(tensors, expected, strict=True):
        assert_same_buffers(got.detach(), want.detach(), type(got).__name__)
    assert torch.equal(product, wanted)


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4", "float8_current"])
def test_operators_keep_their_promises(kind: str) -> None:
    """Runs the checks of torch.library: schema, fake results, symbolic sizes."""
    quantizer = ALL[kind]()
    x = sample(64, 64)
    spec = quantizer._spec().text
    torch.library.opcheck(torch.ops.narrowfloat.quantize.default, (x, spec))
    storage = quantizer(x).detach()
    roles = list(storage._role_buffers())
    torch.library.opcheck(
        torch.ops.narrowfloat.dequantize.default, (roles, spec, list(x.shape), torch.float32)
    )
    torch.library.opcheck(torch.ops.narrowfloat.column_sums.default, (x,))
    from narrowfloat.pytorch._arrays import operand
    from narrowfloat.pytorch._native import ROLES
    from narrowfloat.pytorch.cpp_extensions.qgemm_operator import _text

    rows = operand(storage, ("rowwise",))
    given = [rows.buffers.get(role) for role in ROLES]
    side = (given, _text(rows), [64, 64])
    torch.library.opcheck(
        torch.ops.narrowfloat.qgemm.default,
        (*side, *side, "TN", [64, 64], torch.bfloat16, "reproducible"),
    )
    places = torch.zeros(64, 64), torch.zeros(64, 64)
    torch.library.opcheck(
        torch.ops.narrowfloat.qgemm_gelu.default, (*side, *side, "TN", *places, True, None, False)
    )
    assert buffers(storage)


def test_the_operator_of_delayed_scaling_keeps_its_promises() -> None:
    spec = delayed()._spec().text
    arguments = (sample(64, 64), spec, torch.full((1,), 2.0))
    torch.library.opcheck(torch.ops.narrowfloat.quantize.default, arguments)
    torch.library.opcheck(
        torch.ops.narrowfloat.draw_seeds.default,
        (sample(4, 4),),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("kind", VALUES)
def test_quantized_results_pass_plain_gradients(kind: str) -> None:
    quantizer = ALL[kind]()
    compiled = torch.compile(lambda a: quantizer(a * 3), fullgraph=True, backend="aot_eager")
    for read in (lambda q: q.dequantize(), lambda q: q * 1):
        x = sample(requires_grad=True)
        quantized = compiled(x)
        assert type(quantized) is quantizer.TENSOR and quantized.requires_grad
        (read(quantized) * 2).sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, 6))
    quantized = compiled(sample(requires_grad=True))
    (quantized.view(quantized.shape) * 2).sum().backward()  # the gradient of this node is a view
