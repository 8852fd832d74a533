# SPDX-License-Identifier: Apache-2.0
"""Dequantizes codes and scales."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import SdyShardingRule
from jax.sharding import Mesh, PartitionSpec
from jax.typing import DTypeLike

from narrowfloat import _core
from narrowfloat.jax._arguments import FLOAT_NAMES
from narrowfloat.jax.primitives.base import Arrays, BasePrimitive, register_primitive
from narrowfloat.jax.primitives.sharding import Factors, axes_of, spec_of, whole_blocks
from narrowfloat.jax.quantize.scale_padding import pad_scales
from narrowfloat.jax.quantize.scaling_modes import check_static, normalize_axis, split_shape


def is_columnwise(spec: str) -> bool:
    """Returns whether the text of a spec names the columnwise direction of untransposed codes."""
    return "columnwise=1" in spec


def pad_scales_of(scale_inv: jax.Array, spec: str, matrix: tuple[int, int]) -> jax.Array:
    """Returns block scales with padding zeros, as handlers read them; other scales unchanged."""
    if scale_inv.ndim <= 1:
        return scale_inv
    check_static("dequantize", matrix)
    shapes = _core.scale_shapes(spec.partition(":")[0], *matrix, is_columnwise(spec))
    return pad_scales(scale_inv, *shapes)


def _multiples(spec: str, ndim: int, axis: int) -> list[int]:
    """Returns the number that each dimension of a part must be a multiple of, to cut no block. Only
    the dimension along blocks has one above 1, since scales of tiles are repeated.
    """
    along = _core.block_of(spec.partition(":")[0])[1]
    multiples = [1] * ndim
    multiples[axis - 1 if is_columnwise(spec) else -1] = along
    return multiples


@register_primitive
class DequantizePrimitive(BasePrimitive):
    """nf_dequantize_ffi: every scheme, one direction, named by the text of a spec.

    Operands: data; scale_inv, on the outer level without padding unless `is_padded`; amax: float32
    (1,), read by schemes with a scale of the tensor too. Result: the values, in the shape of data.
    """

    name = "nf_dequantize_ffi"
    static_args = ("spec", "flatten_axis", "out_dtype", "is_padded")

    @staticmethod
    def abstract(
        data: ShapedArray, scale_inv: ShapedArray, amax: ShapedArray, **static: Any
    ) -> Sequence[ShapedArray]:
        return [ShapedArray(data.shape, static["out_dtype"])]

    @staticmethod
    def attributes(**static: Any) -> dict[str, object]:
        return {"spec": str(static["spec"]), "flatten_axis": int(static["flatten_axis"])}

    @classmethod
    def impl(cls, *operands: jax.Array, **static: Any) -> Arrays:
        data, scale_inv, amax = operands
        if not static["is_padded"]:
            matrix = split_shape(data.shape, static["flatten_axis"])
            scale_inv = pad_scales_of(scale_inv, static["spec"], matrix)
        return cls.inner_primitive.bind(data, scale_inv, amax, **{**static, "is_padded": True})

    @classmethod
    def partition(
        cls, static: dict[str, Any], mesh: Mesh, operands: Sequence, results: Sequence
    ) -> tuple[Callable[..., Arrays], list[PartitionSpec], list[PartitionSpec]]:
        data, scale_inv, _ = operands
        if not _follows(static, data.shape, scale_inv.shape):
            return super().partition(static, mesh, operands, results)
        blocks = len(scale_inv.shape) > 1
        rank = len(data.shape)
        axis = normalize_axis(static["flatten_axis"], rank)
        multiples = _multiples(static["spec"], rank, axis) if blocks else [1] * rank
        axes = whole_blocks(axes_of(data), data.shape, multiples, mesh)
        place = spec_of(axes)
        scales = place if blocks else PartitionSpec()
        body = functools.partial(cls.impl, **static)
        return body, [place, scales, PartitionSpec()], [place]

    @classmethod
    def sharding_rule(
        cls,
        static: dict[str, Any],
        mesh: Mesh,
        operands: Sequence[tuple],
        results: Sequence[tuple],
    ) -> SdyShardingRule:
        data, scale_inv, amax = operands
        factors = Factors(mesh)
        if not _follows(static, data, scale_inv) or len(scale_inv) == 1:
            own = factors.unrelated(data)
            others = [factors.unrelated(scale_inv), factors.unrelated(amax)]
            return factors.rule([own, *others], [own])
        axis = normalize_axis(static["flatten_axis"], len(data))
        multiples = _multiples(static["spec"], len(data), axis)
        pairs = [factors.blocks(n, m) for n, m in zip(data, multiples, strict=True)]
        names, scales = (tuple(pair[i] for pair in pairs) for i in (0, 1))
        return factors.rule([names, scales, factors.unrelated(amax)], [names])


def _follows(static: dict[str, Any], data: Sequence[int], scale_inv: Sequence[int]) -> bool:
    """Returns whether scales can have the sharding of their codes."""
    return len(scale_inv) == 1 or (not static["is_padded"] and len(scale_inv) == len(data))


def dequantize_codes(
    data: jax.Array,
    scale_inv: jax.Array,
    amax: jax.Array,
    *,
    spec: str,
    flatten_axis: int,
    dtype: DTypeLike,
    is_padded: bool = False,
) -> jax.Array:
    """Returns the values of `data` in its own layout, in `dtype`.

    spec: text form, with the direction of data in its own layout; flatten_axis: of data.
    Errors: TypeError for a dtype that is not float32, float16 or bfloat16.
    """
    out_dtype = np.dtype(jnp.dtype(dtype))
    if out_dtype.name not in FLOAT_NAMES:
        raise TypeError(
            f"dequantize: dtype must be float32, float16 or bfloat16, got {out_dtype.name}"
        )
    return DequantizePrimitive.outer_primitive.bind(
        data,
        scale_inv,
        amax,
        spec=str(spec),
        flatten_axis=int(normalize_axis(flatten_axis, data.ndim)),
        out_dtype=out_dtype,
        is_padded=bool(is_padded),
    )[0]
