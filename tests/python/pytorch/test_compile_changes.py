# SPDX-License-Identifier: Apache-2.0
"""Tests quantizers that are changed, copied or made around and inside compiled functions."""

import copy
from collections.abc import Callable

import pytest
import torch
from families import ALL, E4M3, E5M2, assert_same_buffers, sample

from narrowfloat import pytorch as nfp

Step = Callable[[torch.Tensor, nfp.Quantizer], list[nfp.QuantizedTensor]]
KINDS = ["mxfp8", "float8_current", "blockwise_1d", "nvfp4", "float8_delayed"]
KINDS += ["hybrid_nvfp4_mxfp8"]


@pytest.fixture(autouse=True)
def _without_earlier_graphs() -> None:
    torch._dynamo.reset()


def call(x: torch.Tensor, quantizer: nfp.Quantizer) -> list[nfp.QuantizedTensor]:
    return [quantizer(x)]


def long_call(x: torch.Tensor, quantizer: nfp.Quantizer) -> list[nfp.QuantizedTensor]:
    return [quantizer.quantize(x)]


def change_between(x: torch.Tensor, quantizer: nfp.Quantizer) -> list[nfp.QuantizedTensor]:
    first = quantizer(x)
    quantizer.set_usage(columnwise=not quantizer.columnwise_usage)
    return [first, quantizer(x)]


def change_between_long(x: torch.Tensor, quantizer: nfp.Quantizer) -> list[nfp.QuantizedTensor]:
    first = quantizer.quantize(x)
    quantizer.set_usage(columnwise=False)
    return [first, quantizer.quantize(x)]


def change_back(x: torch.Tensor, quantizer: nfp.Quantizer) -> list[nfp.QuantizedTensor]:
    quantizer.set_usage(columnwise=False)
    first = quantizer(x)
    quantizer.set_usage(columnwise=True)
    return [first, quantizer(x)]


def change_a_copy(x: torch.Tensor, quantizer: nfp.Quantizer) -> list[nfp.QuantizedTensor]:
    other = quantizer.copy()
    first = other(x)
    other.set_usage(columnwise=False)
    return [first, other(x), quantizer(x)]


def deep_copy(x: torch.Tensor, quantizer: nfp.Quantizer) -> list[nfp.QuantizedTensor]:
    return [copy.deepcopy(quantizer)(x), copy.copy(quantizer)(x)]


def make(x: torch.Tensor, _: nfp.Quantizer) -> list[nfp.QuantizedTensor]:
    other = nfp.MXFP8Quantizer(E4M3)
    first = other(x)
    other.set_usage(columnwise=False)
    return [first, other(x), nfp.MXFP8Quantizer(E5M2, columnwise=False)(x)]


STEPS = [call, long_call, change_between, change_between_long, change_back, change_a_copy]


def follow(step: Step, inside: nfp.Quantizer, outside: nfp.Quantizer) -> None:
    """Compares the compiled step with the eager step, while both quantizers change equally."""
    compiled = torch.compile(lambda t: step(t, inside), backend="aot_eager")
    x = sample(dtype=torch.bfloat16)
    for columnwise in (None, None, True, False, True):
        for quantizer in (inside, outside):
            quantizer.set_usage(columnwise=columnwise)
        for i, (got, want) in enumerate(zip(compiled(x), step(x, outside), strict=True)):
            assert_same_buffers(got.detach(), want.detach(), f"{columnwise}, result {i}")
        assert inside.get_usages() == outside.get_usages()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
def test_no_result_is_of_an_earlier_configuration(step: Step, kind: str) -> None:
    follow(step, ALL[kind](), ALL[kind]())


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4", "float8_current"])
@pytest.mark.parametrize("step", [deep_copy, make])
def test_quantizers_made_in_compiled_code(step: Step, kind: str) -> None:
    follow(step, ALL[kind](), ALL[kind]())


CHANGES = {
    "dtype": ("mxfp8", "dtype", E5M2),
    "pow_2": ("float8_current", "force_pow_2_scales", True),
    "epsilon": ("float8_current", "amax_epsilon", 64.0),
    "2d": ("nvfp4", "with_2d_quantization", True),
    "swizzle": ("mxfp8", "optimize_for_gemm", True),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_every_field_is_a_guard(change: str) -> None:
    kind, field, value = CHANGES[change]
    inside, outside = ALL[kind](), ALL[kind]()
    compiled = torch.compile(lambda t: inside(t), backend="aot_eager", fullgraph=True)
    x = sample(dtype=torch.bfloat16)
    before = compiled(x)
    assert_same_buffers(before.detach(), outside(x).detach(), "before")
    for quantizer in (inside, outside):
        setattr(quantizer, field, value)
    assert_same_buffers(compiled(x).detach(), outside(x).detach(), "after")


def scaled_rows() -> nfp.HybridQuantizer:
    return nfp.HybridQuantizer(
        rowwise_quantizer=nfp.Float8CurrentScalingQuantizer(E4M3),
        columnwise_quantizer=nfp.Float8BlockQuantizer(E4M3, rowwise=False, columnwise=True),
    )


FLOATS = {
    "float8_current": (ALL["float8_current"], lambda quantizer: [quantizer]),
    "blockwise_2d": (ALL["blockwise_2d"], lambda quantizer: [quantizer]),
    "hybrid": (scaled_rows, lambda quantizer: [*quantizer._children()]),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("step", [call, long_call])
@pytest.mark.parametrize("kind", list(FLOATS))
def test_floats_of_quantizers_are_constants_of_graphs(
    kind: str, step: Step, dynamic: bool | None
) -> None:
    make_one, holders = FLOATS[kind]
    inside, outside = make_one(), make_one()
    compiled = torch.compile(
        lambda t: step(t, inside), backend="aot_eager", fullgraph=True, dynamic=dynamic
    )
    for epsilon in (0.0, 64.0, 128.0):
        for holder in (*holders(inside), *holders(outside)):
            holder.amax_epsilon = epsilon
        for rows in (128, 256) if dynamic else (128,):
            x = sample(rows, 256)
            (got,), (want,) = compiled(x), step(x, outside)
            assert_same_buffers(got.detach(), want.detach(), f"{epsilon}, {rows} rows")


def test_equal_quantizers_may_be_swapped() -> None:
    first, second = ALL["mxfp8"](), ALL["mxfp8"]()
    compiled = torch.compile(lambda t, q: q(t), backend="aot_eager", fullgraph=True)
    x = sample()
    for quantizer in (first, second, first):
        assert_same_buffers(compiled(x, quantizer).detach(), quantizer(x).detach(), "equal")
    for changed in (first, second):
        changed.dtype = E5M2
        for quantizer in (first, second):
            assert_same_buffers(compiled(x, quantizer).detach(), quantizer(x).detach(), "changed")


def write_between(x: torch.Tensor, quantizer: nfp.Quantizer) -> list[nfp.QuantizedTensor]:
    first = quantizer(x)
    quantizer.columnwise_usage = not quantizer.columnwise_usage
    return [first, quantizer(x)]


def write_in_another_function(
    x: torch.Tensor, quantizer: nfp.Quantizer
) -> list[nfp.QuantizedTensor]:
    return [quantizer(x), *write_between(x, quantizer), quantizer(x)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [write_between, write_in_another_function])
def test_fields_are_written_in_compiled_code(step: Step, kind: str) -> None:
    follow(step, ALL[kind](), ALL[kind]())


def test_a_graph_cannot_hold_a_write_to_a_value() -> None:
    quantizer = ALL["mxfp8"]()

    def write(x: torch.Tensor) -> nfp.QuantizedTensor:
        quantizer.dtype = E5M2
        return quantizer(x)

    rule = "^MXFP8Quantizer.dtype must be set outside of a graph, or by set_usage"
    with pytest.raises(torch._dynamo.exc.UserError, match=rule):
        torch.compile(write, backend="aot_eager", fullgraph=True)(sample())
    assert quantizer.dtype == E4M3
