# SPDX-License-Identifier: Apache-2.0
"""NVFP4: E4M3 scales of 1x16 blocks along each direction, or of square tiles, and an amax."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from narrowfloat import _core
from narrowfloat.common import recipe
from narrowfloat.pytorch import _native
from narrowfloat.pytorch._autograd import _IdentityFunc, _ReshapeFunc, _ViewFunc
from narrowfloat.pytorch._reduction import reduce_max
from narrowfloat.pytorch._types import Group, Quantized
from narrowfloat.pytorch.constants import DType, DTypeSpelling
from narrowfloat.pytorch.tensor._families import register_family
from narrowfloat.pytorch.tensor._hadamard import (
    get_hadamard_matrix,
    get_no_random_sign_vector,
    get_random_sign_mask_for_rht,
    get_rht_matrix,
    get_sign_from_vector,
    get_wgrad_sign_vector,
    rht_matrix,
)
from narrowfloat.pytorch.tensor._master_weights import TileWeight
from narrowfloat.pytorch.tensor._scheme_quantizer import (
    SchemeQuantizer,
    check_whole_blocks,
    require_fitting,
    scale_shape,
)
from narrowfloat.pytorch.tensor._scheme_tensor import SchemeTensor
from narrowfloat.pytorch.tensor.storage.nvfp4_tensor_storage import (
    E4M3_BOUND,
    NVFP4TensorStorage,
    _FromNVFP4Func,
    codes_per_byte,
    nvfp4_scheme,
)

__all__ = [
    "NVFP4Quantizer",
    "NVFP4Tensor",
    "_FromNVFP4Func",
    "_IdentityFunc",
    "_ReshapeFunc",
    "_ViewFunc",
    "get_hadamard_matrix",
    "get_no_random_sign_vector",
    "get_random_sign_mask_for_rht",
    "get_rht_matrix",
    "get_sign_from_vector",
    "get_wgrad_sign_vector",
]

E4M3_BOUNDS = (E4M3_BOUND, 256)  # 256: an option of 4over6


_Buffers = tuple[torch.Tensor | None, ...]  # one per role of ROLES


def _of_direction(direction: str, buffers: _Buffers) -> _Buffers:
    given = zip(_native.ROLES, buffers, strict=True)
    return tuple(buffer if direction in role else None for role, buffer in given)


class NVFP4Quantizer(SchemeQuantizer["NVFP4Tensor"]):
    """NVFP4 in 1x16 blocks along each direction, or in tiles (`with_2d_quantization`).

    Rows and columns must be multiples of the block. Set the attribute `optimize_for_gemm` for
    swizzled scales.

    fp4_dtype: E2M1, in any form that DType.cast() accepts.
    rowwise, columnwise: the directions of new tensors; set_usage() changes them.
    with_amax_reduction: the amax is the largest over amax_reduction_group.
    amax_reduction_group: a process group; None is the world.
    with_rht: applies the random Hadamard transform to the columnwise operand, which then has 1x16
        blocks; needs bfloat16 and with_post_rht_amax.
    with_post_rht_amax: the columnwise amax is taken after the transform.
    with_2d_quantization: square tiles share a scale.
    stochastic_rounding: rounds up with a probability equal to the distance to the value below, over
        the distance between both values; the seed is drawn from PyTorch's generator.
    row_scaled_nvfp4: an amax per row instead of one per tensor.
    nvfp4_use_4over6: maps the amax of each block to 4 or to 6, by the smaller error.
    nvfp4_e4m3_max: with 4over6, the largest block scale: 448 or 256.
    nvfp4_4over6_err_mode: "MAE" or "MSE", the error that 4over6 compares.
    with_random_sign_mask: the transform negates some of its inputs, by a fixed mask.

    Errors: ValueError for another nvfp4_e4m3_max or nvfp4_4over6_err_mode.
    """

    COLUMNS_CANNOT_BE_GATHERED = True

    def __init__(
        self,
        fp4_dtype: DTypeSpelling = DType.kFloat4E2M1,
        rowwise: bool = True,
        columnwise: bool = True,
        with_amax_reduction: bool = False,
        amax_reduction_group: Group = None,
        with_rht: bool = False,
        with_post_rht_amax: bool = False,
        with_2d_quantization: bool = False,
        stochastic_rounding: bool = False,
        row_scaled_nvfp4: bool = False,
        nvfp4_use_4over6: bool = False,
        nvfp4_e4m3_max: int = E4M3_BOUNDS[0],
        nvfp4_4over6_err_mode: str = "MAE",
        with_random_sign_mask: bool = True,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        if nvfp4_use_4over6 and nvfp4_e4m3_max not in E4M3_BOUNDS:
            bounds = " or ".join(map(str, E4M3_BOUNDS))
            raise ValueError(f"nvfp4_e4m3_max must be {bounds}, got {nvfp4_e4m3_max}")
        mode = nvfp4_4over6_err_mode.upper()
        if mode not in ("MAE", "MSE"):
            raise ValueError(f"nvfp4_4over6_err_mode must be MAE or MSE, got {mode}")
        self.dtype = DType.cast(fp4_dtype)
        self.with_amax_reduction = with_amax_reduction
        self.amax_reduction_group = amax_reduction_group
        self.with_rht = with_rht
        self.with_post_rht_amax = with_post_rht_amax
        self.with_2d_quantization = with_2d_quantization
        self.stochastic_rounding = stochastic_rounding
        self.row_scaled_nvfp4 = row_scaled_nvfp4
        self.nvfp4_use_4over6 = nvfp4_use_4over6
        self.nvfp4_e4m3_max = nvfp4_e4m3_max if nvfp4_use_4over6 else E4M3_BOUNDS[0]
        self.nvfp4_4over6_err_mode = mode
        self.with_random_sign_mask = with_random_sign_mask
        self.rht_matrix_random_sign_mask_t = (
            _core.HADAMARD_SIGN_MASK if with_random_sign_mask else 0
        )
        self._rebuild_derived_state()

    def _rebuild_derived_state(self) -> None:
        self.rht_matrix = rht_matrix(self.rht_matrix_random_sign_mask_t, torch.get_default_device())

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["rht_matrix"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._rebuild_derived_state()

    def _scheme(self) -> str:
        return nvfp4_scheme(self.dtype, self.with_2d_quantization)

    def _options(self) -> tuple[tuple[str, Any], ...]:
        options: tuple[tuple[str, Any], ...] = ()
        if self.optimize_for_gemm:
            options += (("swizzled", True),)
        if self.with_rht and not self.with_2d_quantization:
            options += self._rht_options()
        if self.stochastic_rounding:
            options += (("stochastic_rounding", True),)
        if self.row_scaled_nvfp4:
            options += (("row_scaled", True),)
        if self.nvfp4_use_4over6:
            options += (("four_over_six", self.nvfp4_4over6_err_mode.lower()),)
            options += (("e4m3_max", float(self.nvfp4_e4m3_max)),)
        return options

    def _rht_options(self) -> tuple[tuple[str, Any], ...]:
        return ("rht", True), ("rht_sign_mask", self.rht_matrix_random_sign_mask_t)

    def _passes(self, buffers: _Buffers) -> tuple[tuple[_core.QuantSpec, _Buffers], ...]:
        """Returns the specs that fill a tensor in turn, each with its part of the buffers.

        Tiles and the transform exclude each other in one direction: the rowwise one has tiles, and
        the transformed columnwise one 1x16 blocks.
        """
        if not self.with_rht or not self.with_2d_quantization:
            return ((self._spec(), buffers),)
        runs = nvfp4_scheme(self.dtype, False)
        columns = self._options() + self._rht_options()
        passes: tuple[tuple[_core.QuantSpec, _Buffers], ...] = ()
        if self.rowwise_usage:
            passes += ((self._rowwise_spec(), _of_direction("rowwise", buffers)),)
        if self.columnwise_usage:
            spec = _native.make_spec(runs, False, True, columns)
            passes += ((spec, _of_direction("columnwise", buffers)),)
        return passes

    def _settings(self) -> dict[str, Any]:
        return {
            "fp4_dtype": self.dtype,
            "with_gemm_swizzled_scales": self.optimize_for_gemm,
            "row_scaled_nvfp4": self.row_scaled_nvfp4,
            "nvfp4_use_4over6": self.nvfp4_use_4over6,
            "nvfp4_e4m3_max": self.nvfp4_e4m3_max,
        }

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if self.row_scaled_nvfp4 or self.nvfp4_use_4over6:
            self._check_options()
        check_whole_blocks("NVFP4Quantizer", self._scheme(), shape)

    def _check_options(self) -> None:
        """Raises ValueError for options that exclude each other."""
        if self.row_scaled_nvfp4:
            if not self.rowwise_usage:
                raise ValueError("quantize: row_scaled_nvfp4 needs rowwise usage")
            for name in (
                "with_rht",
                "with_2d_quantization",
                "stochastic_rounding",
                "with_amax_reduction",
            ):
                if getattr(self, name):
                    raise ValueError(f"quantize: row_scaled_nvfp4 cannot go with {name}")
        if self.nvfp4_use_4over6:
            for name in ("with_rht", "stochastic_rounding"):
                if getattr(self, name):
                    raise ValueError(f"quantize: nvfp4_use_4over6 cannot go with {name}")

    def _check_group(self) -> None:
        if self.row_scaled_nvfp4 and (not self.rowwise_usage or self.columnwise_usage):
            raise ValueError("GroupedTensor: row_scaled_nvfp4 needs rowwise usage alone")

    def _check_quantize(self, tensor: torch.Tensor) -> None:
        super()._check_quantize(tensor)
        if not self.with_rht:
            return
        if not self.with_post_rht_amax:
            raise ValueError("quantize: with_rht needs with_post_rht_amax")
        if tensor.dtype != torch.bfloat16:
            raise ValueError(f"quantize: with_rht takes bfloat16, got {tensor.dtype}")

    def _plan(self, shape: tuple[int, ...]) -> tuple[_native.PlannedBuffer, ...]:
        if not self.columnwise_usage or len(shape) == 2:
            return super()._plan(shape)
        # Columnwise buffers have the shapes of the flattened tensor.
        flat = super()._plan(_native.flatten_shape(shape))
        if not self.rowwise_usage:
            return flat
        rows = {b.role: b for b in _native.plan(self._rowwise_spec(), shape)}
        return tuple(rows.get(buffer.role, buffer) for buffer in flat)

    def _rowwise_spec(self) -> _core.QuantSpec:
        return _native.make_spec(self._scheme(), True, False, self._options())

    def _fill(self, src: torch.Tensor, dst: Quantized, noop: torch.Tensor | None) -> None:
        shared = self._shared_amax if self.with_amax_reduction else None
        self._fill_under(src, dst, noop, shared)

    def _fill_under(
        self,
        src: torch.Tensor,
        dst: Quantized,
        noop: torch.Tensor | None,
        shared: Callable[[torch.Tensor | None], torch.Tensor | None] | None,
    ) -> None:
        """Fills `dst` with its own amaxes, or with the result of `shared` for each of them."""
        seeds = _native.draw_seeds(src) if self.stochastic_rounding else (0, 0)
        for spec, buffers in self._passes(dst._role_buffers()):
            _native.quantize(spec, src, buffers, noop, seeds=seeds)
            if shared is not None:
                rows, columns = (shared(amax) for amax in buffers[-2:])
                _native.quantize(
                    spec, src, buffers, noop, amax=rows, amax_columnwise=columns, seeds=seeds
                )

    def _fill_nothing(self, src: torch.Tensor, dst: Quantized) -> None:
        """Also sets amaxes to 0, because an empty row-scaled product is multiplied by them too."""
        for amax in (dst._amax_rowwise, dst._amax_columnwise):
            if amax is not None:
                amax.zero_()
        super()._fill_nothing(src, dst)

    def _fill_given(
        self,
        src: torch.Tensor,
        dst: Quantized,
        rows: torch.Tensor | None,
        columns: torch.Tensor | None,
    ) -> None:
        """Fills `dst` with given amaxes, in its directions."""
        seeds = _native.draw_seeds(src) if self.stochastic_rounding else (0, 0)
        for spec, buffers in self._passes(dst._role_buffers()):
            held = zip(buffers[-2:], (rows, columns), strict=True)
            amax, other = (None if buffer is None else given for buffer, given in held)
            _native.quantize(spec, src, buffers, amax=amax, amax_columnwise=other, seeds=seeds)

    def _fill_measured(self, src: torch.Tensor, dst: Quantized, amax: torch.Tensor) -> None:
        """Fills `dst` with an amax measured elsewhere, which is reduced like its own."""
        if self.with_amax_reduction:
            reduce_max(amax, self.amax_reduction_group)
        self._fill_given(src, dst, amax, amax)

    def _fill_part(self, src: torch.Tensor, fresh: Quantized, noop: torch.Tensor | None) -> None:
        """Fills a part with the amaxes of the whole. Errors: ValueError for larger values."""
        if self.row_scaled_nvfp4:  # each row has its own amax
            self._fill(src, fresh, noop)
            return
        if not _native.has_values(src):
            return
        whole = {id(amax): amax.clone() for amax in fresh._tensors()[-2:] if amax is not None}

        def kept(amax: torch.Tensor | None) -> torch.Tensor | None:
            if amax is not None:
                require_fitting("NVFP4Tensor", float(amax), float(whole[id(amax)]))
            return None if amax is None else whole[id(amax)]

        self._fill_under(src, fresh, noop, kept)

    def _shared_amax(self, amax: torch.Tensor | None) -> torch.Tensor | None:
        if amax is None:
            return None
        amax = amax.clone()
        reduce_max(amax, self.amax_reduction_group)
        return amax

    def get_scale_shape(self, shape: Iterable[int], columnwise: bool) -> tuple[int, ...]:
        """Returns the shape of a direction's padded scales."""
        spec = _native.make_spec(self._scheme(), True, True)
        return scale_shape(spec, _native.flatten_shape(tuple(shape)), columnwise)

    @staticmethod
    def get_columnwise_shape(shape: Iterable[int]) -> tuple[int, ...]:
        """Returns the shape of columnwise codes with the last dimension first, counted in codes."""
        shape = tuple(shape)
        return (shape[-1], *shape[:-1]) if shape else ()

    @staticmethod
    def convert_shape_for_fp4(shape: Iterable[int]) -> tuple[int, ...]:
        """Returns the shape in bytes for codes of `shape`."""
        shape = tuple(shape)
        return (*shape[:-1], shape[-1] // codes_per_byte())

    def is_quantizable(self, inp: torch.Tensor) -> bool:
        return not self.row_scaled_nvfp4 and super().is_quantizable(inp)

    def is_requantization_safe(self) -> bool:
        return not self.stochastic_rounding

    def _get_compatible_recipe(self) -> type:
        return recipe.NVFP4BlockScaling


NVFP4Quantizer.register_value_class(
    "dtype",
    "with_rht",
    "with_post_rht_amax",
    "with_2d_quantization",
    "stochastic_rounding",
    "row_scaled_nvfp4",
    "nvfp4_use_4over6",
    "nvfp4_e4m3_max",
    "nvfp4_4over6_err_mode",
    "with_random_sign_mask",
    "rht_matrix_random_sign_mask_t",
    "with_amax_reduction",
)


class NVFP4Tensor(NVFP4TensorStorage, TileWeight, SchemeTensor):  # type: ignore[override]  # device: a field in PyTorch's stub
    """A tensor of FP4 codes with E4M3 scales and an amax.

    The arguments are those of NVFP4TensorStorage and of QuantizedTensor.
    """

    def _has_tiles(self) -> bool:
        return self._quantizer.with_2d_quantization

    def _gather_usages(self, module: torch.nn.Module) -> tuple[bool, bool]:
        if not self._derives_columnwise():
            return super()._gather_usages(module)
        return True, self._quantizer.columnwise_usage

    def _require_cloneable(self) -> None:
        assert self._rowwise_data is not None, "clone: an NVFP4Tensor needs its rowwise data"

    def _set_plain_data(self, tensor: torch.Tensor) -> None:
        if tensor.shape != self.shape or tensor.dtype != self.dtype or not self._on(tensor.device):
            super()._set_plain_data(tensor)
            return
        self._quantizer.update_quantized(_native.in_float32_if_double(tensor.detach()), self)


def _make_nvfp4_tensor_in_reduce_ex(*arguments: Any) -> NVFP4Tensor:
    """Makes the tensor of a pickle."""
    return NVFP4Tensor._make_in_reduce_ex(*arguments)


register_family(
    NVFP4Tensor,
    NVFP4TensorStorage,
    NVFP4Quantizer,
    default=lambda storage: NVFP4Quantizer(),
    reconstructor=_make_nvfp4_tensor_in_reduce_ex,
)
