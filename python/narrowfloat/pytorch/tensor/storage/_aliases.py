# SPDX-License-Identifier: Apache-2.0
"""Tensors over the same codes, each with or without a transpose of its own.

After a write to one of them, the transposes of all others must be updated.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from narrowfloat.pytorch.tensor.storage.float8_tensor_storage import Float8TensorStorage

_MIN_CAPACITY = 8  # entries before dead ones are removed


class Aliases:
    """Weak references to the codes and transposes of tensors that share codes.

    It references buffers instead of tensors, because torch.nn.Module.to() swaps tensors, and
    tensors with weak references cannot be swapped.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[weakref.ref, weakref.ref]] = []
        self._room = _MIN_CAPACITY

    def add(self, storage: Float8TensorStorage) -> None:
        """Adds the buffers of a storage with both directions."""
        data, transpose = storage._data, storage._transpose
        if data is None or not storage._has_columnwise():
            return
        for known in self._pairs:
            if known[0]() is data and known[1]() is transpose:
                return
        if len(self._pairs) >= self._room:
            self._pairs = [p for p in self._pairs if p[0]() is not None and p[1]() is not None]
            self._room = 2 * len(self._pairs) + _MIN_CAPACITY
        self._pairs.append((weakref.ref(data), weakref.ref(transpose)))

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns the codes and transposes that still exist."""
        found = [(data(), transpose()) for data, transpose in self._pairs]
        return [(d, t) for d, t in found if d is not None and t is not None]

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Returns None, because a copy has codes of its own."""
        return None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Aliases, ()


def join(storage: Float8TensorStorage, alias: Float8TensorStorage) -> None:
    """Records that `alias` shares codes of `storage`."""
    group = storage._aliases
    if group is None:
        group = storage._aliases = Aliases()
        group.add(storage)
    alias._aliases = group
    group.add(alias)


def _overlap(first: torch.Tensor | None, second: torch.Tensor) -> bool:
    native: Any = torch._C
    return first is not None and native._is_alias_of(first, second)


def _moved(codes: torch.Tensor, source: int, target: int) -> torch.Tensor:
    return codes.movedim(source, target) if codes.dim() > 1 else codes


def follow(written: Float8TensorStorage) -> None:
    """Copies the new codes of `written` to the other direction of each of its aliases."""
    group = written._aliases
    if group is None:
        return
    group.add(written)
    own = written._transpose if written._has_columnwise() else None
    for data, transpose in group.pairs():
        of_codes, of_transpose = _overlap(written._data, data), _overlap(own, transpose)
        if of_codes and not of_transpose:
            transpose.copy_(_moved(data, -1, 0))
        elif of_transpose and not of_codes:
            data.copy_(_moved(transpose, 0, -1))
