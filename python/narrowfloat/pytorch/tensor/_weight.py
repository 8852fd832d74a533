# SPDX-License-Identifier: Apache-2.0
"""Methods of a family for weights in external memory and for sharded master copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch

    from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage
    from narrowfloat.pytorch.tensor._master_weights import Piece, Route


if TYPE_CHECKING:
    _Storage = QuantizedTensorStorage  # the class that is combined with this one
else:
    _Storage = object


class Weight(_Storage):
    """The methods of a weight, with defaults for families."""

    RAW_FIELD: ClassVar[str | None] = None  # the field that can move to external memory
    MASTER_IN_HYBRID: ClassVar[bool] = False  # a hybrid's child supports pieces of a master

    def _raw_owner(self) -> Weight:
        """Returns the storage whose RAW_FIELD is moved.

        Errors: NotImplementedError if the family does not support it.
        """
        if self.RAW_FIELD is None:
            raise NotImplementedError(f"replace_raw_data: not available for {type(self).__name__}")
        return self

    def _drop_derived(self) -> None:
        """Drops the buffers derived from the rowwise codes, or marks them as stale."""

    def _restore_derived(self) -> None:
        """Derives buffers from the rowwise codes again; may be called twice."""

    def _master_pieces(self, piece: Piece, master: torch.Tensor | None) -> list[Any]:
        """Returns the pieces to quantize for this one.

        Errors: NotImplementedError, ValueError, before anything changes.
        """
        return [piece]

    def _master_route(self, piece: Piece) -> Route:
        """Returns the route of a piece.

        Errors: ValueError, NotImplementedError for a weight that does not support pieces.
        """
        raise ValueError(f"quantize_master_weights: not available for {type(self).__name__}")


def as_weight(verb: str, tensor: object) -> Weight:
    """Returns `tensor`. Errors: ValueError unless it is a quantized tensor."""
    if not isinstance(tensor, Weight):
        raise ValueError(f"{verb}: not available for {type(tensor).__name__}")
    return tensor
