# SPDX-License-Identifier: Apache-2.0
"""Tests that compiled writes have the bytes of eager writes, and which writes end the graph."""

from collections.abc import Callable

import pytest
import torch
from families import E4M3, assert_same_buffers
from writes import KINDS, WHOLE, WRITES, values

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


Transposes = dict[str, Callable[[nfp.QuantizedTensor], torch.Tensor]]
TRANSPOSES: Transposes = {
    "t": lambda q: q.t(),
    "permute": lambda q: q.permute(1, 0),
    "part": lambda q: q[:128].t(),
    "detach": lambda q: q.detach().t().detach(),
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "float8_delayed"])
@pytest.mark.parametrize("write", ["mul_", "copy_"])
@pytest.mark.parametrize("transpose", TRANSPOSES)
def test_a_transpose_shows_later_writes(kind: str, write: str, transpose: str) -> None:
    x = values()
    results = []
    for compiled in (True, False):
        q = KINDS[kind]()(x).detach()

        def step(q: nfp.QuantizedTensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            t = TRANSPOSES[transpose](q)
            before = t + 0
            WRITES[write](q, x)
            return before, t + 0, x[:, : t.shape[0]] @ t, t

        run = torch.compile(step, backend="aot_eager", fullgraph=True) if compiled else step
        results.append([made + 0 for made in run(q, x)])
    for made, expected in zip(*results, strict=True):
        assert torch.equal(made, expected)
    assert not torch.equal(results[0][0], results[0][1])


def test_a_transpose_shows_later_writes_to_a_part() -> None:
    x = values()
    q, other = (nfp.MXFP8Quantizer(E4M3)(x).detach() for _ in range(2))

    def step(q: nfp.QuantizedTensor) -> torch.Tensor:
        t = q.t()
        q[:128].mul_(0.5)
        return t + 0

    made = torch.compile(step, backend="inductor", fullgraph=True)(q)
    assert torch.equal(made, step(other)) and torch.equal(made, q.dequantize().t())


def test_a_graph_decodes_a_transpose_once_between_writes() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    @torch.compile(backend=torch._dynamo.backends.common.aot_autograd(fw_compiler=backend))
    def step(q: nfp.QuantizedTensor) -> torch.Tensor:
        t = q.t()
        made = t + 1, t * 2, t.detach() - 1
        q.mul_(0.5)
        return (*made, t + 1, t * 2)

    step(nfp.MXFP8Quantizer(E4M3)(values()).detach())
    decoded = torch.ops.narrowfloat.dequantize.default
    # The transpose is decoded before and after the write, and mul_() decodes its input.
    assert len(graphs[0].graph.find_nodes(op="call_function", target=decoded)) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["rowwise", "columnwise"])
@pytest.mark.parametrize("write", WHOLE)
def test_a_write_that_brings_back_a_direction_ends_the_graph(
    kind: str, direction: str, write: str
) -> None:
    x = values()
    written = []
    for compiled in (True, False):
        q = KINDS[kind]()(x).detach()
        q.update_usage(**{f"{direction}_usage": False})

        def step(q: nfp.QuantizedTensor, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            WRITES[write](q, x)
            return y * 2

        if (kind, direction) == ("nvfp4", "rowwise") and write != "copy_":
            with pytest.raises(NotImplementedError, match="columnwise NVFP4"):
                step(q, x)
            return
        run = torch.compile(step, backend="aot_eager") if compiled else step
        assert torch.equal(run(q, x), (x + 1) * 2)
        written.append(q)
    assert_same_buffers(*written, "written")


def test_a_write_that_drops_a_direction_ends_the_graph() -> None:
    def step(q: nfp.QuantizedTensor) -> torch.Tensor:
        q.mul_(0.5)
        return q + 0

    written = []
    for compiled in (True, False):
        q = nfp.MXFP8Quantizer(E4M3)(values()).detach()
        q._quantizer = nfp.MXFP8Quantizer(E4M3, columnwise=False)
        (torch.compile(step, backend="aot_eager") if compiled else step)(q)
        written.append(q)
    assert not written[0].get_usages()["columnwise"]
    assert_same_buffers(*written, "written")


def test_a_single_graph_names_the_rule() -> None:
    q = nfp.MXFP8Quantizer(E4M3)(values()).detach()
    q.update_usage(columnwise_usage=False)
    message = (
        r"quantize: a write that changes the directions of a MXFP8Tensor must run outside of a "
        r"graph, which keeps the buffers of its inputs"
    )
    with pytest.raises(RuntimeError, match=message):
        torch.compile(lambda q: q.mul_(0.5), backend="aot_eager", fullgraph=True)(q)


def test_a_graph_may_bring_back_what_it_drops() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x: torch.Tensor, quantizer: nfp.Quantizer) -> torch.Tensor:
        q = quantizer(x)
        q.update_usage(columnwise_usage=False)
        q.mul_(0.5)
        return q + 0

    quantizer = nfp.MXFP8Quantizer(E4M3)
    expected = quantizer(quantizer(values()).dequantize() * 0.5).dequantize()
    assert torch.equal(step(values(), quantizer), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_input_is_returned_as_itself(kind: str) -> None:
    q = KINDS[kind]()(values()).detach()

    @torch.compile(backend="aot_eager")
    def step(q: nfp.QuantizedTensor) -> tuple[torch.Tensor, torch.Tensor]:
        return q.mul_(0.5), q.sum()

    with torch.no_grad():
        result, _ = step(q)
        assert result is q
        result.zero_()
    assert not q.dequantize().any()


def test_a_wrapper_has_one_empty_storage() -> None:
    q = KINDS["mxfp8"]()(values()).detach()
    storage = q.untyped_storage()
    assert storage is q.untyped_storage() and storage.size() == 0
    assert storage is not q.detach().untyped_storage()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", ["zero_", "mul_", "copy_"])
def test_a_compiled_write_reaches_directions_of_aliases(kind: str, write: str) -> None:
    """Checks a graph's input without a direction that another tensor over its codes has."""
    source = KINDS[kind]()(values() * 0.5).detach()

    def step(q: nfp.QuantizedTensor) -> None:
        if write == "copy_":
            q.copy_(source.dequantize() if kind.startswith("hybrid") else source)
        else:
            q.mul_(0.5) if write == "mul_" else q.zero_()

    written = []
    for compiled in (True, False):
        q = KINDS[kind]()(values()).detach()
        alias = q.detach()
        alias.update_usage(columnwise_usage=False)
        (torch.compile(step, backend="aot_eager") if compiled else step)(alias)
        written.append(q)
    assert_same_buffers(*written, "written")


@pytest.mark.parametrize("kind", ["mxfp8", "float8_current", "hybrid_float8_mxfp8"])
def test_a_single_graph_refuses_writes_without_a_direction(kind: str) -> None:
    q = KINDS[kind]()(values()).detach()
    q.update_usage(columnwise_usage=False)
    message = (
        rf"write: a {type(q).__name__} that has dropped a direction must be written outside of a "
        r"graph, which does not see whether another tensor has the direction"
    )
    with pytest.raises(RuntimeError, match=message):
        torch.compile(lambda q: q.zero_(), backend="aot_eager", fullgraph=True)(q)


def test_a_graph_refuses_codes_that_lost_their_scale() -> None:
    quantizer = nfp.Float8CurrentScalingQuantizer(E4M3)
    q = quantizer(values()).detach()

    @torch.compile(backend="aot_eager")
    def read(q: nfp.QuantizedTensor) -> torch.Tensor:
        return q[128:] + 0

    read(q)
    q[:128].copy_(quantizer(values()[:128] * 10).detach())
    with pytest.raises(RuntimeError, match=r"rows 128 to .* have lost their scale"):
        read(q)
    q.copy_(values())
    assert torch.equal(read(q), q[128:].dequantize())
