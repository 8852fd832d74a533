# SPDX-License-Identifier: Apache-2.0
"""Codes that become stale when a part of a tensor gets another scale of the whole.

A sharded checkpoint is loaded piece by piece, each with its saved codes and scale. Until the last
piece is loaded, the other codes do not match the scale, and must not be read.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, ClassVar, Self

import torch

from narrowfloat.pytorch import _native

if TYPE_CHECKING:
    from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage


_ATTRIBUTE = "_stale_codes"  # of the scale, shared by all aliases and parts


class StaleCodes:
    """Marks the codes of a whole tensor that do not match its scale."""

    live = 0  # number of marks; 0 makes the check cheap
    _all: ClassVar[set[weakref.ref[StaleCodes]]] = set()

    def __new__(cls, *_: object) -> Self:
        mark = super().__new__(cls)
        cls._all.add(weakref.ref(mark, cls._uncount))
        cls.live = len(cls._all)
        return mark

    @classmethod
    def _uncount(cls, mark: weakref.ref[StaleCodes]) -> None:
        cls._all.discard(mark)
        cls.live = len(cls._all)

    def __init__(self, codes: torch.Tensor, columnwise: bool, change: str) -> None:
        span = 1 + sum((n - 1) * step for n, step in zip(codes.shape, codes.stride(), strict=True))
        # Code 0 is value 0 under every scale.
        self.mask = codes.as_strided((span,), (1,), codes.storage_offset()) != 0
        self.first = codes.storage_offset()
        self.line = codes.shape[-1]
        self.columnwise = columnwise
        self.change = change  # of the scale, for the message

    def of(self, tensor: SchemeStorage) -> torch.Tensor:
        """Returns the marks for the codes of an alias or a part, as a view."""
        codes = tensor.__dict__[tensor.COLUMNWISE if self.columnwise else tensor.ROWWISE]
        offset = codes.storage_offset() - self.first
        return self.mask.as_strided(codes.shape, codes.stride(), offset)

    def rows(self) -> tuple[int, int]:
        """Returns the first and the last row with marked codes."""
        found = self.mask.nonzero().reshape(-1)
        rows = found % self.line if self.columnwise else found // self.line
        return int(rows.min()), int(rows.max())


def _scales(tensor: SchemeStorage) -> list[torch.Tensor]:
    named = (tensor.__dict__[name] for name in tensor._shared_names())
    return [scale for scale in named if scale is not None]


def _find(tensor: SchemeStorage) -> StaleCodes | None:
    marks = (scale.__dict__.get(_ATTRIBUTE) for scale in _scales(tensor))
    return next((mark for mark in marks if mark is not None), None)


def _forget(tensor: SchemeStorage) -> None:
    for scale in _scales(tensor):
        scale.__dict__.pop(_ATTRIBUTE, None)


def take_scales(dst: SchemeStorage, src: SchemeStorage) -> None:
    """Copies the scales of `src` to `dst`, before its codes are copied.

    If `dst` is a part and a scale changes, all other codes of the whole become stale. For tensors
    without values no scale changes.
    """
    pairs = {
        name: (dst.__dict__[name], src.__dict__[name])
        for name in dst._shared_names()
        if dst.__dict__[name] is not None and src.__dict__[name] is not None
    }
    # Only for a part, because a comparison needs values, which a graph does not have.
    if dst._cut is not None and pairs:
        if not all(map(_native.has_values, next(iter(pairs.values())))):
            return
        changes = [
            f"{name}, which was {float(mine)} and is {float(other)}"
            for name, (mine, other) in pairs.items()
            if not torch.equal(mine.reshape(-1), other.reshape(-1))
        ]
        if not changes:
            return
        rowwise, columnwise = dst._cut.codes
        codes = columnwise if rowwise is None else rowwise
        assert codes is not None
        mark = StaleCodes(codes, rowwise is None, changes[0])
        _forget(dst)
        for scale in _scales(dst):
            setattr(scale, _ATTRIBUTE, mark)
    for mine, other in pairs.values():
        mine.copy_(other.view(mine.shape))


def note_write(tensor: SchemeStorage) -> None:
    """Removes the marks of the codes of `tensor`, which were written with its scales."""
    if not StaleCodes.live:
        return
    mark = _find(tensor)
    if mark is None:
        return
    if tensor._cut is not None:
        mark.of(tensor).zero_()
    if tensor._cut is None or not mark.mask.any():
        _forget(tensor)


def require_fresh(tensor: SchemeStorage) -> None:
    """Raises RuntimeError if `tensor` has stale codes."""
    if not StaleCodes.live:
        return
    mark = _find(tensor)
    if mark is None or not (mark.mask if tensor._cut is None else mark.of(tensor)).any():
        return
    first, last = mark.rows()
    raise RuntimeError(
        f"{type(tensor).__name__}: rows {first} to {last} have lost their scale, because a part "
        f"was copied with another one: all rows must share one {mark.change}; copy the rest with "
        "that scale too, or write the whole tensor; shards with scales of their own load on as "
        "many ranks as saved them"
    )
