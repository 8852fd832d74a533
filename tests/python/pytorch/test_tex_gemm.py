# SPDX-License-Identifier: Apache-2.0
"""Tests products of plain tensors by the native module's generic_gemm()."""

from collections.abc import Callable

import pytest
import torch
from narrowfloat.pytorch import tex
from torch.utils._python_dispatch import TorchDispatchMode


class _ResultTypes(TorchDispatchMode):
    """Records the dtypes of the results of all operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> torch.Tensor:
        result = func(*args, **(kwargs or {}))
        self.seen.add(result.dtype)
        return result


def test_beta_changes_nothing_without_accumulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that beta 0, which TransformerEngine passes, keeps the product in bf16. A product with
    sums in fp32 takes five times as long if bf16 is fast."""
    monkeypatch.setattr("narrowfloat.pytorch.tex.gemm.SLOW_DTYPES", frozenset())
    a, b = torch.randn(48, 96, dtype=torch.bfloat16), torch.randn(40, 96, dtype=torch.bfloat16)
    call = dict(output_dtype=None, bias=None, bias_type=None, gelu=False, gelu_in=None, grad=False)
    for beta in (None, 0.0):
        with _ResultTypes() as types:
            (y, *_) = tex.generic_gemm(a, True, b, False, None, None, **call, beta=beta)
        assert types.seen == {torch.bfloat16}
        assert torch.equal(y, torch.nn.functional.linear(b, a))
