# SPDX-License-Identifier: Apache-2.0
"""Quantizes weights from master weights that ranks hold in flat pieces.

The result is the same as if the whole weight was quantized: ranks share amaxes, and each rank
writes the codes of its piece. If a block extends beyond the piece, its other elements are set to
the shared amax, so that the quantizer computes the block's scale as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch._reduction import reduce_max
from narrowfloat.pytorch._types import Group
from narrowfloat.pytorch.tensor._scheme_quantizer import SchemeQuantizer
from narrowfloat.pytorch.tensor._weight import Weight, as_weight

# One buffer of codes, or one per direction.
Shard = torch.Tensor | Sequence[torch.Tensor]


@dataclass
class Piece:
    """A weight, and the flat part of its master on this rank; `values` may be empty."""

    weight: Any
    values: torch.Tensor
    start: int
    shard: Any  # receives the codes instead of the weight's own buffer

    @property
    def end(self) -> int:
        return self.start + self.values.numel()


def make_piece(
    weight: Weight, master: torch.Tensor | None, start: int | None, shard: Shard
) -> Piece:
    """Returns a piece. Errors: ValueError for a missing, negative or too large offset."""
    if master is None or master.numel() == 0:
        # A hybrid weight without data is on no device; its _master_pieces() raises.
        device = weight.device if weight._leaves() else None
        return Piece(weight, torch.empty(0, dtype=weight.dtype, device=device), 0, shard)
    size = weight.numel()
    if start is None or start < 0 or start + master.numel() > size:
        raise ValueError(
            f"quantize_master_weights: a master must lie within its weight of {size} elements, got "
            f"{master.numel()} from offset {start} on"
        )
    return Piece(weight, master.detach().reshape(-1).to(weight.dtype), start, shard)


def magnitudes(values: torch.Tensor) -> torch.Tensor:
    """Returns magnitudes with NaN replaced by 0, because amaxes ignore NaN."""
    return values.abs().nan_to_num(nan=0.0, posinf=torch.inf)


def share(locals_: list[torch.Tensor], group: Group) -> list[torch.Tensor]:
    """Returns the maximum of each tensor over all ranks, with one reduction."""
    packed = torch.cat([tensor.reshape(-1) for tensor in locals_])
    reduce_max(packed, group)
    parts = packed.split([tensor.numel() for tensor in locals_])
    return [part.view(tensor.shape) for part, tensor in zip(parts, locals_, strict=True)]


def write_codes(piece: Piece, own: torch.Tensor | None, codes: torch.Tensor, at: int) -> None:
    """Writes the codes of the piece to the shard, or to their place in the weight's buffer."""
    if piece.shard is not None:
        piece.shard.view(-1)[: codes.numel()].copy_(codes)
    elif own is not None:
        own.view(-1)[at : at + codes.numel()].copy_(codes)


# One scale for the tensor.


def write_float8(piece: Piece, codes: torch.Tensor) -> None:
    """Writes the codes of the piece; for a weight with only its transpose, scatters them."""
    weight = piece.weight
    if weight._data is not None or piece.shard is not None:
        write_codes(piece, weight._data, codes, piece.start)
        return
    cols = weight.shape[-1]
    places = torch.arange(piece.start, piece.end, device=codes.device)
    weight._transpose.view(cols, -1)[places % cols, places // cols] = codes


def cast_float8(piece: Piece, scale: torch.Tensor | None, amax: torch.Tensor | None) -> None:
    """Casts the piece with a given scale or the shared amax."""
    weight, quantizer = piece.weight, piece.weight._quantizer
    spec = _native.make_spec(quantizer._scheme(), True, False, quantizer._options())
    # A rank without a piece also computes the scale.
    values = piece.values
    if not values.numel():
        values = values.new_zeros(1)
    codes = values.new_empty(values.numel(), dtype=torch.uint8)
    measured = quantizer.amax if scale is not None else None
    buffers = (codes, weight._scale_inv, None, None, None, measured, None)
    _native.quantize(spec, values, buffers, scale=scale, amax=amax)
    if piece.values.numel():
        write_float8(piece, codes)


def quantize_delayed(pieces: list[Piece], group: Group) -> None:
    for piece in pieces:
        cast_float8(piece, piece.weight._quantizer.scale, None)
    amaxes = [piece.weight._quantizer.amax for piece in pieces]
    for amax, shared in zip(amaxes, share(amaxes, group), strict=True):
        amax.copy_(shared)


def quantize_current(pieces: list[Piece], group: Group) -> None:
    amaxes = []
    for piece in pieces:
        amax = torch.zeros(1, dtype=torch.float32, device=piece.weight.device)
        if piece.values.numel():
            _native.verbs.amax(piece.values, amax, _native.threads())
        amaxes.append(amax)
    for piece, amax in zip(pieces, share(amaxes, group), strict=True):
        cast_float8(piece, None, amax)


# Blocks.


def block_amaxes(values: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """Returns the largest magnitude of each block of a matrix, including short ones at the ends."""
    height, width = values.shape
    padded = torch.nn.functional.pad(values, (0, -width % cols, 0, -height % rows))
    return padded.view(padded.shape[0] // rows, rows, -1, cols).amax(dim=(1, 3))


def on_blocks(piece: Piece, rows: int, cols: int, amaxes: torch.Tensor) -> torch.Tensor:
    """Returns the values of the piece in the weight's shape, and block amaxes elsewhere."""
    height, width = piece.weight.shape
    whole = amaxes.repeat_interleave(rows, 0).repeat_interleave(cols, 1)[:height, :width]
    whole = whole.to(piece.weight.dtype).contiguous()
    whole.view(-1)[piece.start : piece.end] = piece.values
    return whole


def amaxes_of_part(
    values: torch.Tensor, start: int, shape: tuple[int, int], rows: int, cols: int
) -> torch.Tensor:
    """Returns the amax of each block over a flat part of a matrix; 0 for a block outside of it."""
    whole = values.new_zeros(shape[0] * shape[1])
    whole[start : start + values.numel()] = magnitudes(values)
    return block_amaxes(whole.view(shape), rows, cols)


def local_amaxes(piece: Piece, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns the amax of each block over the piece; zero for a block outside of it."""
    shape = tuple(piece.weight.shape)
    return amaxes_of_part(piece.values, piece.start, shape, rows, cols).to(dtype)


class Direction(NamedTuple):
    """A direction of a piece, with blocks of rows x cols."""

    piece: Piece
    name: str
    rows: int
    cols: int


def quantize_directions(directions: list[Direction], group: Group, dtype: torch.dtype) -> None:
    """Writes the scales of all blocks and the codes of the pieces, after reducing all amaxes at
    once.
    """
    local = [local_amaxes(d.piece, d.rows, d.cols, dtype) for d in directions]
    for direction, amaxes in zip(directions, share(local, group), strict=True):
        quantize_direction(direction, amaxes)


def quantize_direction(direction: Direction, amaxes: torch.Tensor) -> None:
    """Writes the scales of all blocks, computed from the amaxes, and the codes of the piece."""
    piece, name = direction.piece, direction.name
    weight = piece.weight
    quantizer: SchemeQuantizer = weight._quantizer.copy()
    quantizer.internal = False
    quantizer.set_usage(rowwise=name == "rowwise", columnwise=name == "columnwise")
    made = quantizer.quantize_impl(on_blocks(piece, direction.rows, direction.cols, amaxes))
    for buffer in weight._direction_buffers(name):
        if not buffer.endswith("_data"):
            getattr(weight, buffer).copy_(getattr(made, buffer))
    per_byte = weight._spec().codes_per_byte
    codes = getattr(made, f"_{name}_data").view(-1)
    begin, end = piece.start // per_byte, piece.end // per_byte
    shard = piece.shard
    if isinstance(shard, (tuple, list)):
        shard = shard[0] if name == "rowwise" else shard[1]
    own = Piece(weight, piece.values, piece.start, shard)
    write_codes(own, getattr(weight, f"_{name}_data"), codes[begin:end], begin)


def quantize_tiles(pieces: list[Piece], group: Group) -> None:
    block = pieces[0].weight._spec().block_length
    rows = [Direction(piece, "rowwise", block, block) for piece in pieces]
    quantize_directions(rows, group, torch.float32)


def quantize_mxfp8(pieces: list[Piece], group: Group) -> None:
    block = pieces[0].weight._spec().block_length
    tiles = pieces[0].weight._quantizer.with_2d_quantization
    shapes = {"rowwise": (1, block), "columnwise": (block, 1)}
    directions = [
        Direction(piece, name, *((block, block) if tiles else shape))
        for name, shape in shapes.items()
        for piece in pieces
        if getattr(piece.weight, f"_{name}_data") is not None
    ]
    if directions:
        quantize_directions(directions, group, pieces[0].weight.dtype)


def quantize_identity(pieces: list[Piece], group: Group) -> None:
    for piece in pieces:
        if piece.values.numel():
            values = piece.values.to(piece.weight._hp_data.dtype)
            write_codes(piece, piece.weight._hp_data, values, piece.start)


# The function for each weight.


def check_matrix(weight: Weight) -> None:
    if weight.dim() != 2:
        raise ValueError(
            f"quantize_master_weights: {type(weight).__name__} weights must be matrices, got "
            f"{tuple(weight.shape)}"
        )


class Route(NamedTuple):
    """The function that quantizes a piece's bucket, and the options that the bucket must share."""

    handler: Callable[[list[Piece], Any], None]
    bucket: tuple[Any, ...] = ()  # distinguishes buckets of one handler
    options: tuple[Any, ...] = ()


class TileWeight(Weight):
    """The weights of a family that derives columnwise data of square tiles from rowwise data."""

    RAW_FIELD = "_rowwise_data"

    def _has_tiles(self) -> bool:
        """Returns whether blocks are square tiles."""
        raise NotImplementedError

    def _drop_derived(self) -> None:
        self._keep(True, False)

    def _restore_derived(self) -> None:
        self._create_columnwise()

    def _master_route(self, piece: Piece) -> Route:
        check_matrix(self)
        if not self._has_tiles():
            raise ValueError(
                f"quantize_master_weights: {type(self).__name__} weights need 2-D quantization"
            )
        per_byte = self._spec().codes_per_byte
        if (piece.start % per_byte, piece.end % per_byte) != (0, 0):
            raise ValueError(
                f"quantize_master_weights: pieces of an {type(self).__name__} must be whole bytes, "
                f"got [{piece.start}, {piece.end})"
            )
        options = (self._quantizer.dtype.name, *self._quantizer._options())
        return Route(quantize_tiles, (type(self), self.dtype), options)


def route(piece: Piece) -> Route:
    """Returns the route of a piece.

    Errors: ValueError for a weight of another type or without a quantizer.
    """
    if piece.weight._quantizer is None:
        raise ValueError("quantize_master_weights: the weight needs a quantizer, got None")
    return piece.weight._master_route(piece)


@torch.no_grad()
def quantize_pieces(
    model_weights: Sequence[Any],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: Group,
    shards: Sequence[Any],
) -> None:
    """Checks all arguments, then quantizes bucket by bucket, in the same order on all ranks."""
    buckets: dict[tuple[Any, ...], tuple[Route, list[Piece]]] = {}
    for weight, master, start, shard in zip(
        model_weights, master_weights, start_offsets, shards, strict=True
    ):
        whole = make_piece(as_weight("quantize_master_weights", weight), master, start, shard)
        for piece in weight._master_pieces(whole, master):
            way = route(piece)
            first, pieces = buckets.setdefault(way[:2], (way, []))
            if first.options != way.options:
                raise ValueError(
                    f"quantize_master_weights: {type(piece.weight).__name__} weights must share "
                    f"the options {first.options}, got {way.options}"
                )
            pieces.append(piece)
    for way, pieces in buckets.values():
        way.handler(pieces, group)
