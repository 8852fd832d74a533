# SPDX-License-Identifier: Apache-2.0
"""Tests every operator of PyTorch that writes an argument or returns a view of one.

An operator on a quantized tensor q either raises and changes no byte of q, or writes the quantized
result of the same operator on plain values. A write to a returned view changes q or is refused.
"""

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from families import ALL, buffers, sample, snapshot
from narrowfloat.pytorch._dispatch import find_row
from narrowfloat.pytorch._read_only import ReadOnlyValues, effect_of
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten

from narrowfloat import pytorch as nfp

ROWS, COLS = 128, 128

# Reasons not to try an operator. NO_TENSOR includes operators of TorchScript's containers.
NO_TENSOR = "takes no tensor as its first argument"
NO_VALUES = "the sample arguments do not fit its rules on plain tensors"
RANDOM = "draws random numbers"
UNINITIALIZED = "gives memory as it finds it"
UNCHECKED = "trusts arguments that another operator made and crashes on others, or takes seconds"

# Words in names of UNCHECKED operators. The same code as for others writes their arguments.
UNCHECKED_WORDS = (
    "backward", "conv", "ctc", "cudnn", "eig", "fbgemm", "fft", "gru", "kron", "linalg", "lstm",
    "lstsq", "miopen", "mkldnn", "nested", "pdist", "pool", "quantize", "repeat", "rnn", "sparse",
    "svd",
)  # fmt: skip

Make = tuple[tuple[Any, ...], dict[str, Any]]


def listed() -> Iterator[OpOverload]:
    """Yields the overloads of aten and prims that write an argument or return a view of one."""
    names = sorted({schema.name for schema in torch._C._jit_get_all_schemas()})
    for name in names:
        namespace, _, short = name.partition("::")
        if namespace in ("aten", "prims"):
            packet = getattr(getattr(torch.ops, namespace), short, None)
            for overload in packet.overloads() if packet is not None else ():
                operator = getattr(packet, overload)
                effect = effect_of(operator)
                if effect.written or effect.aliases:
                    yield operator


OPERATORS = {str(operator): operator for operator in listed()}


def value_of(argument: torch.Argument, tensor: torch.Tensor) -> object:
    """Returns a value for an argument by its type and name. Errors: LookupError for other types."""
    kind, name = str(argument.type), argument.name
    if kind == "Tensor":
        return tensor if argument.alias_info is not None else other(name)
    if kind == "List[Tensor]":
        return [tensor if argument.alias_info is not None else other(name)]
    if argument.has_default_value() and not argument.kwarg_only:
        return argument.default_value
    simple = {"bool": False, "float": 0.5, "number": 2, "str": "none"}
    if kind == "List[int]":
        known = {"dims": [1, 0], "split_sizes": [32, 96], "stride": [COLS, 1]}
        return known.get(name, [ROWS, COLS])
    if kind == "int":
        return {"dim": 0, "dim0": 0, "dim1": 1, "split_size": 32, "length": 32}.get(name, 1)
    if kind in simple:
        return simple[kind]
    raise LookupError(kind)


def other(name: str) -> torch.Tensor:
    if name == "mask":
        return torch.ones(ROWS, COLS, dtype=torch.bool)
    return torch.ones(ROWS, COLS)


def arguments(operator: OpOverload, tensor: torch.Tensor) -> Make:
    """Returns arguments: `tensor` is the first written or viewed one, all others are plain.
    Errors: LookupError if `tensor` fits no argument, or value_of() has no value."""
    args, kwargs, used = [], {}, False
    for argument in operator._schema.arguments:
        aliased = argument.alias_info is not None
        target = tensor if aliased and not used else torch.ones(ROWS, COLS)
        if argument.kwarg_only and argument.has_default_value():
            continue
        value = value_of(argument, target)
        used |= aliased and bool(tree_flatten(value)[0]) and tree_flatten(value)[0][0] is tensor
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    if not used:
        raise LookupError(NO_TENSOR)
    return tuple(args), kwargs


@functools.cache
def why_not(name: str) -> str | None:
    """Returns the reason not to try an operator; None if it runs on plain tensors."""
    operator = OPERATORS[name]
    if any(word in name for word in UNCHECKED_WORDS):
        return UNCHECKED
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return RANDOM
    if "empty" in name:
        return UNINITIALIZED
    results = []
    for _ in range(2):
        tensor = torch.arange(ROWS * COLS, dtype=torch.float32).view(ROWS, COLS).remainder(7)
        try:
            args, kwargs = arguments(operator, tensor)
        except LookupError as error:
            return f"no value for {error}" if str(error) != NO_TENSOR else NO_TENSOR
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                operator(*args, **kwargs)
        except Exception:
            return NO_VALUES
        results.append(tensor)
    return None if torch.equal(*results) or results[0].isnan().any() else RANDOM


def changed(tensor: nfp.QuantizedTensor, before: dict[str, torch.Tensor]) -> bool:
    now = buffers(tensor)
    return now.keys() != before.keys() or any(
        not torch.equal(now[name].view(torch.uint8), before[name].view(torch.uint8))
        for name in before
    )


def check(kind: str, operator: OpOverload) -> None:
    tensor = ALL[kind]()(sample(ROWS, COLS).remainder(7)).detach()
    values, before = tensor.dequantize(), snapshot(tensor)
    plain = values.clone()
    args, kwargs = arguments(operator, tensor)
    try:
        result = operator(*args, **kwargs)
    except Exception:
        assert not changed(tensor, before), f"{operator} raised and wrote"
        return
    args, kwargs = arguments(operator, plain)
    plain_result = operator(*args, **kwargs)
    assert tensor.shape == plain.shape, f"{operator} changed a shape"
    if not effect_of(operator).written:
        assert not changed(tensor, before), f"{operator} wrote what its schema does not say"
    elif find_row(operator, type(tensor)) is None:
        expected = ALL[kind]()(plain).detach().dequantize()
        got = tensor.dequantize()
        # If the operator changes no value, codes may stay. Quantizing again may give other codes.
        if torch.equal(plain, values) and torch.equal(got, values):
            return
        assert torch.equal(got.nan_to_num(), expected.nan_to_num()), f"{operator}: other values"
    if effect_of(operator).aliases:
        own = plain.untyped_storage().data_ptr()
        pairs = zip(tree_flatten(result)[0], tree_flatten(plain_result)[0], strict=True)
        for view, wanted in pairs:
            if (
                wanted is not None and wanted.untyped_storage().data_ptr() == own
            ):  # false for to() of another type
                check_view(operator, tensor, view)


def check_view(operator: OpOverload, tensor: nfp.QuantizedTensor, view: object) -> None:
    """Checks that a write to a view of a quantized tensor changes the tensor, or is refused."""
    if not isinstance(view, torch.Tensor) or view.numel() == 0:
        return
    before = snapshot(tensor)
    tensor.fill_(1)
    try:
        view.zero_()
    except RuntimeError:
        assert type(view) is ReadOnlyValues, operator
    else:
        zeros = int((tensor.dequantize() == 0).sum())
        assert zeros == view.numel(), f"{operator}: {zeros} zeros arrived of {view.numel()}"
    for name, buffer in buffers(tensor).items():
        buffer.copy_(before[name])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", list(ALL))
def test_every_operator_acts_writes_back_or_raises(kind: str) -> None:
    faults = []
    for name, operator in OPERATORS.items():
        if why_not(name) is None:
            try:
                check(kind, operator)
            except AssertionError as error:
                faults.append(f"{name}: {error}")
    assert not faults, "\n".join(faults)


def test_most_operators_are_tried() -> None:
    """Checks the number of tried operators, with the reasons that why_not() computes."""
    reasons = {name: why_not(name) for name in OPERATORS}
    tried = [name for name, reason in reasons.items() if reason is None]
    assert len(OPERATORS) > 1000 and len(tried) > 500, (len(OPERATORS), len(tried))
    for name in MUST_BE_TRIED:
        assert reasons[name] is None, f"{name}: {reasons[name]}"


MUST_BE_TRIED = (
    "aten.add_.Tensor", "aten.add.out", "aten.mul_.Scalar", "aten.copy_.default",
    "aten.zero_.default", "aten.fill_.Scalar", "aten.t.default", "aten.t_.default",
    "aten.slice.Tensor", "aten.select.int",
    "aten.split.Tensor", "aten.split_with_sizes.default", "aten.unbind.int", "aten.view.default",
    "aten.expand.default", "aten.permute.default", "aten.transpose.int", "aten.detach.default",
    "aten.alias.default", "aten.unsqueeze.default", "aten.squeeze.default", "aten.diagonal.default",
    "aten._foreach_add_.Scalar", "aten._foreach_mul_.List", "aten.masked_fill_.Scalar",
)  # fmt: skip
