# SPDX-License-Identifier: Apache-2.0
"""Entries that transpose codes and scales."""

from collections.abc import Sequence

import torch

from narrowfloat import _core
from narrowfloat.pytorch import _native
from narrowfloat.pytorch._graph_operators import device_of
from narrowfloat.pytorch.constants import DType
from narrowfloat.pytorch.tensor.storage.nvfp4_tensor_storage import codes_per_byte, nvfp4_scheme

__all__ = [
    "fp8_transpose",
    "nvfp4_2d_multi_tensor_transpose",
    "nvfp4_2d_scale_transpose",
    "nvfp4_data_transpose",
    "swap_first_dims",
]

_TILES = nvfp4_scheme(DType.kFloat4E2M1, True)


def fp8_transpose(
    input: torch.Tensor, dtype: DType, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the codes with the last dimension first, in `out` if given."""
    turned = input.movedim(-1, 0) if input.dim() > 1 else input
    return turned.contiguous() if out is None else out.copy_(turned.reshape(out.shape))


def swap_first_dims(tensor: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the tensor with dimensions 0 and 1 exchanged, in `out` if given.

    Errors: ValueError for fewer than two dimensions.
    """
    if tensor.dim() < 2:
        raise ValueError(
            f"swap_first_dims: needs at least two dimensions, got {tuple(tensor.shape)}"
        )
    swapped = tensor.transpose(0, 1)
    return swapped.contiguous() if out is None else out.copy_(swapped)


def _spec() -> _core.QuantSpec:
    """Returns the spec of NVFP4 tiles in both directions."""
    return _native.make_spec(_TILES, True, True)


def _derive(
    shape: tuple[int, int],
    data: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    data_out: torch.Tensor | None = None,
    scales_out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns columnwise codes and scales of tiles from rowwise ones; None means scratch memory."""
    planned = {buffer.role: buffer for buffer in _native.plan(_spec(), shape)}
    device = device_of((data, scales, data_out, scales_out))

    def buffer(role: str, given: torch.Tensor | None) -> torch.Tensor:
        plan = planned[role]
        if given is not None:
            return given
        return torch.zeros(plan.shape, dtype=plan.dtype, device=device)

    columns = buffer("columnwise_data", data_out), buffer("columnwise_scale_inv", scales_out)
    rows = buffer("rowwise_data", data), buffer("rowwise_scale_inv", scales)
    named = {
        "rowwise_data": rows[0].contiguous(),
        "rowwise_scale_inv": rows[1].contiguous(),
        "columnwise_data": columns[0],
        "columnwise_scale_inv": columns[1],
    }
    _native.derive_columnwise(_spec(), shape, tuple(map(named.get, _native.ROLES)))
    return columns


def nvfp4_data_transpose(input: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Returns packed FP4 codes of the transpose of a matrix, in `out` if given.

    Shapes: input (M, K / 2) bytes; the result (K, M / 2).
    Errors: ValueError for another rank, an odd M or another shape of `out`.
    """
    per_byte = codes_per_byte()
    if input.dim() != 2 or input.shape[0] % per_byte != 0:
        raise ValueError(
            f"nvfp4_data_transpose: needs a matrix with a multiple of {per_byte} rows, got "
            f"{tuple(input.shape)}"
        )
    rows, cols = input.shape[0], input.shape[1] * per_byte
    if out is not None and tuple(out.shape) != (cols, rows // per_byte):
        raise ValueError(
            f"nvfp4_data_transpose: out must be {(cols, rows // per_byte)}, got {tuple(out.shape)}"
        )
    if input.numel() == 0:
        return input.new_empty((cols, rows // per_byte)) if out is None else out
    return _derive((rows, cols), data=input, data_out=out)[0]


def nvfp4_2d_scale_transpose(
    input: torch.Tensor, output: torch.Tensor, M_tiles: int, K_tiles: int
) -> None:
    """Writes the columnwise scales of tiles from the rowwise ones, repeated for each line.

    Shapes: padded input and output, as planned by a quantizer of M_tiles x K_tiles tiles.
    """
    tile = _spec().block_length
    _derive((M_tiles * tile, K_tiles * tile), scales=input, scales_out=output)


def nvfp4_2d_multi_tensor_transpose(
    rowwise_data_list: Sequence[torch.Tensor],
    columnwise_data_list: Sequence[torch.Tensor],
    rowwise_scale_inv_list: Sequence[torch.Tensor],
    columnwise_scale_inv_list: Sequence[torch.Tensor],
    M_list: Sequence[int],
    K_list: Sequence[int],
) -> None:
    """Writes columnwise codes and scales of matrices (M, K) of tiles from the rowwise ones."""
    lists = (
        zip(M_list, K_list, strict=True),
        rowwise_data_list,
        rowwise_scale_inv_list,
        columnwise_data_list,
        columnwise_scale_inv_list,
    )
    for (rows, cols), *buffers in zip(*lists, strict=True):
        if rows and cols:
            _derive((rows, cols), *buffers)
