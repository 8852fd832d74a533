# SPDX-License-Identifier: Apache-2.0
"""Tests every operator that returns a view of an argument, in inference mode."""

from typing import Any

import pytest
import torch
from families import ALL, sample, snapshot
from narrowfloat.pytorch._read_only import effect_of
from test_every_operator import COLS, OPERATORS, ROWS, arguments, why_not
from torch.utils._pytree import tree_flatten

from narrowfloat import pytorch as nfp

# Operators of autograd, which does not run in inference mode.
OF_AUTOGRAD = ("aten._fw_primal.default", "aten._unpack_dual.default")

Outcome = tuple[Any, ...]


def described(result: torch.Tensor) -> tuple[type, torch.Tensor]:
    values = result.dequantize() if isinstance(result, nfp.QuantizedTensor) else result
    return type(result), values.clone()


def outcome(name: str, tensor: nfp.QuantizedTensor) -> Outcome:
    """Runs an operator. Returns types and values of its results, or its error; and the buffers."""
    args, kwargs = arguments(OPERATORS[name], tensor)
    try:
        results = tree_flatten(OPERATORS[name](*args, **kwargs))[0]
        told = [described(r) if isinstance(r, torch.Tensor) else r for r in results]
    except Exception as error:
        told = [(type(error), str(error))]
    return told, snapshot(tensor)


def same(first: object, second: object) -> bool:
    if isinstance(first, torch.Tensor):
        return first.shape == second.shape and torch.equal(
            first.contiguous().view(-1).view(torch.uint8),
            second.contiguous().view(-1).view(torch.uint8),
        )
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[n], second[n]) for n in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made_inside", [False, True])
@pytest.mark.parametrize("kind", list(ALL))
def test_operators_act_as_without_gradients(kind: str, made_inside: bool) -> None:
    x = sample(ROWS, COLS).remainder(7)
    faults = []
    names = [n for n, operator in OPERATORS.items() if effect_of(operator).aliases]
    for name in names:
        if why_not(name) is not None or name in OF_AUTOGRAD:
            continue
        with torch.no_grad():
            expected = outcome(name, ALL[kind]()(x.clone()))
        with torch.inference_mode(made_inside), torch.no_grad():
            tensor = ALL[kind]()(x.clone())
        with torch.inference_mode():
            got = outcome(name, tensor)
        if not same(got, expected):
            faults.append(f"{name}: {got[0]}, expected {expected[0]}"[:200])
    assert not faults, f"{len(faults)} operators:\n" + "\n".join(faults)


@pytest.mark.parametrize("kind", list(ALL))
def test_a_compiled_product_in_inference_mode(kind: str) -> None:
    weight = ALL[kind]()(sample(ROWS, COLS)).detach()
    x = sample(ROWS, COLS, seed=3)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight) + weight.t()[0]

    with torch.no_grad():
        expected = forward(x)
    with torch.inference_mode():
        assert torch.equal(forward(x), expected)
        assert torch.equal(torch.compile(forward, backend="aot_eager")(x), expected)
