# SPDX-License-Identifier: Apache-2.0
"""Verbs on grouped tensors, which treat each group as a tensor of its own."""

from typing import Any

import torch

from narrowfloat.pytorch._swizzle import swizzle_scales_for_gemm_
from narrowfloat.pytorch.constants import DType, TE_DType_To_Torch
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor._hosted import hosted, native
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import GroupedTensorStorage


def group_quantize(
    tensor: torch.Tensor,
    quantizer: Quantizer,
    num_tensors: int,
    first_dims: torch.Tensor | None,
    last_dims: torch.Tensor | None = None,
    tensor_offsets: torch.Tensor | None = None,
    noop_flag: torch.Tensor | None = None,
    output: GroupedTensorStorage | None = None,
) -> GroupedTensorStorage:
    """Returns `tensor` quantized by groups; its elements are stored group after group.

    Shapes:  tensor (rows, cols). first_dims, last_dims: int64, one size per group, None if all are
             the same. Elements after the last group are ignored.
    tensor_offsets: stored in the group and not read, since the sizes define them. noop_flag: 1
             leaves the codes unchanged, or uninitialised without `output`.
    output:  a group of members of one shape, made by this quantizer; filled and returned.
    Errors:  ValueError if the groups do not fit into the tensor, or for another `output`; as the
             quantizer. Nothing is written then.
    """
    rows, cols = tensor.shape
    quantizer = native(quantizer)
    if output is not None:
        own = native(output)
        sizes = {"first_dims": first_dims, "last_dims": last_dims, "tensor_offsets": tensor_offsets}
        _check_output(own, quantizer, num_tensors, (rows, cols), sizes)
        own.quantize(parts_of(own, tensor), noop_flag=noop_flag)
        return output
    grouped = GroupedTensorStorage.make_grouped_tensor(
        num_tensors,
        first_dims,
        last_dims,
        rows,
        cols,
        quantizer=quantizer,
        device=tensor.device,
        dtype=tensor.dtype,
    )
    if tensor_offsets is not None:
        grouped.tensor_offsets = tensor_offsets
    grouped.quantize(parts_of(grouped, tensor), noop_flag=noop_flag)
    return hosted(grouped)


def _check_output(
    output: GroupedTensorStorage,
    quantizer: Quantizer,
    num_tensors: int,
    shape: tuple[int, int],
    sizes: dict[str, torch.Tensor | None],
) -> None:
    """Raises ValueError unless the quantizer makes such an `output` for members of one shape."""
    given = [name for name, value in sizes.items() if value is not None]
    if given or not output.all_same_shape():
        raise ValueError(
            "group_quantize: output needs members of one shape, got "
            f"{' and '.join(given) or 'members of several shapes'}"
        )
    if (output.num_tensors, tuple(output.logical_shape)) != (num_tensors, shape):
        raise ValueError(
            f"group_quantize: output must have {num_tensors} members of {shape} together, got "
            f"{output.num_tensors} of {tuple(output.logical_shape)}"
        )
    if output.quantizer is not hosted(quantizer):
        raise ValueError(
            "group_quantize: output must have been made by the same quantizer, got one of "
            f"{output.quantizer!r}"
        )


def parts_of(grouped: GroupedTensorStorage, tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns each group's part of a plain tensor, as views.

    Errors: ValueError if the tensor has fewer elements than the groups.
    """
    shapes = grouped._member_shapes()
    sizes = [rows * cols for rows, cols in shapes]
    if sum(sizes) > tensor.numel():
        raise ValueError(
            f"group_quantize: the groups need {sum(sizes)} elements, got {tensor.numel()}"
        )
    parts = tensor.detach().contiguous().view(-1)[: sum(sizes)].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


@torch.no_grad()
def group_dequantize(input: GroupedTensorStorage, otype: DType) -> GroupedTensorStorage:
    """Returns the values as a grouped tensor without a quantizer, in that type."""
    dtype = TE_DType_To_Torch[DType.cast(otype)]
    own = native(input)
    data = own.columnwise_data if own.rowwise_data is None else own.rowwise_data
    assert data is not None
    plain = own._plain_like(dtype, data.device)
    assert plain.rowwise_data is not None
    parts = parts_of(plain, plain.rowwise_data)
    for member, part in zip(own._split(), parts, strict=True):
        if part.numel():
            part.copy_(member.dequantize(dtype=dtype))
    return hosted(plain)


def grouped_swizzle_for_gemm(tensor: GroupedTensorStorage, rowwise: bool, columnwise: bool) -> None:
    """Swizzles the scales of every member in place, in the given directions.

    Does nothing if they are swizzled already, or if all groups are empty.
    """
    tensor = native(tensor)
    if tensor._with_gemm_swizzled_scales:
        return
    shapes, members = tensor._member_shapes(), tensor._split()
    filled = [m for m, (rows, cols) in zip(members, shapes, strict=True) if rows * cols]
    for member in filled:
        swizzle_scales_for_gemm_(member, rowwise, columnwise)
    if filled:
        tensor._mark_swizzled()


def group_requantize_inplace(
    grouped_x: GroupedTensorStorage,
    quantizer: Quantizer,
    num_tensors: int,
    first_dims: torch.Tensor | None,
    otype: DType,
    tensor_offsets: torch.Tensor | None = None,
    return_dequantized: bool = False,
) -> torch.Tensor | None:
    """Prepares a tensor with only rowwise codes for products in both directions.

    Keeps the rowwise codes and swizzles their scales. If the quantizer has columnwise usage,
    quantizes columnwise from the decoded values, rounded to `otype`. Does not change a tensor that
    is ready. Returns the decoded values (rows, cols) with return_dequantized, else None.
    Errors: RuntimeError if the quantizer has another dtype, or if the scales are swizzled and the
    decoded values are needed. Nothing is written then.
    """
    tensor, quantizer = native(grouped_x), native(quantizer)
    if quantizer.dtype != tensor.quantizer.dtype:
        raise RuntimeError(
            "group_requantize_inplace: the quantizer must have the dtype of the codes, "
            f"{tensor.quantizer.dtype!r}, got {quantizer.dtype!r}"
        )
    needs_columns = quantizer.columnwise_usage and tensor.columnwise_data is None
    if tensor._with_gemm_swizzled_scales:
        if return_dequantized:
            raise RuntimeError(
                "group_requantize_inplace: return_dequantized needs scales in compact format, got "
                "swizzled ones"
            )
        if needs_columns:
            raise RuntimeError(
                "group_requantize_inplace: columnwise data need scales in compact format, got "
                "swizzled ones"
            )
        return None
    decoded = None
    if needs_columns or return_dequantized:
        held: Any = group_dequantize(grouped_x, otype)
        decoded = held.rowwise_data.view(tensor.logical_shape)
    grouped_swizzle_for_gemm(grouped_x, True, tensor.columnwise_data is not None)
    if needs_columns and decoded is not None:
        _take_columns(tensor, decoded, quantizer, num_tensors, first_dims)
    return decoded if return_dequantized else None


def _take_columns(
    tensor: GroupedTensorStorage,
    values: torch.Tensor,
    quantizer: Quantizer,
    num_tensors: int,
    first_dims: torch.Tensor | None,
) -> None:
    """Quantizes `values` columnwise with swizzled scales, and stores the buffers in `tensor`."""
    columns = quantizer.copy()
    columns.set_usage(rowwise=False, columnwise=True)
    columns.optimize_for_gemm = True
    made = group_quantize(values, hosted(columns), num_tensors, first_dims, tensor.last_dims)
    tensor.columnwise_data = made.columnwise_data
    tensor.columnwise_scale_inv = made.columnwise_scale_inv
    tensor.columnwise_scale_inv_offsets = made.columnwise_scale_inv_offsets
    tensor._mark_columnwise()
