# SPDX-License-Identifier: Apache-2.0
"""Per-tensor FP8: a quantizer with a given scale, and one with a scale from the amax."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from narrowfloat.common import recipe
from narrowfloat.pytorch import _native
from narrowfloat.pytorch._autograd import _IdentityFunc, _ReshapeFunc, _ViewFunc
from narrowfloat.pytorch._exported_tensors import is_recorded
from narrowfloat.pytorch._reduction import reduce_max
from narrowfloat.pytorch._types import Device, Group, Quantized
from narrowfloat.pytorch.constants import DType, DTypeSpelling, TE_DType_To_Torch
from narrowfloat.pytorch.tensor._families import register_family
from narrowfloat.pytorch.tensor._master_weights import Route, quantize_current, quantize_delayed
from narrowfloat.pytorch.tensor._scheme_quantizer import (
    SchemeQuantizer,
    require_fitting,
    source_tensor,
)
from narrowfloat.pytorch.tensor._scheme_tensor import SchemeTensor
from narrowfloat.pytorch.tensor.storage import _aliases as aliases
from narrowfloat.pytorch.tensor.storage.float8_tensor_storage import (
    Float8TensorStorage,
    _FromFloat8Func,
    float8_scheme,
    to_columnwise,
)
from narrowfloat.pytorch.tensor.storage.grouped_tensor_storage import GROUP_STATE

if TYPE_CHECKING:
    from narrowfloat.pytorch.tensor._master_weights import Piece

__all__ = [
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "Float8Tensor",
    "_FromFloat8Func",
    "_IdentityFunc",
    "_ReshapeFunc",
    "_ViewFunc",
]


class _Float8QuantizerBase(SchemeQuantizer["Float8Tensor"]):
    """The common base of the two quantizers of per-tensor FP8."""

    def _scheme(self) -> str:
        return float8_scheme(self.dtype)

    def _settings(self) -> dict[str, Any]:
        return {"fp8_dtype": self.dtype}

    def _directions(self) -> tuple[bool, bool]:
        if self._reads_any_layout():
            return self.rowwise_usage or self.columnwise_usage, False
        return self.rowwise_usage, self.columnwise_usage

    def _check_destination(self, dst: object, bare: bool = False) -> None:
        if not isinstance(dst, self.STORAGE):
            raise ValueError(
                f"{type(self).__name__} can only update Float8Tensor, got {type(dst).__name__}"
            )

    def _check_quantize(self, tensor: torch.Tensor) -> None:
        if self._directions() == (False, True):
            raise NotImplementedError(
                "Columnwise-only per-tensor FP8 quantization is not implemented: the transpose is "
                "made of the rowwise codes, and the quantizer has rowwise_usage=False"
            )
        super()._check_quantize(tensor)

    def _update(
        self, src: torch.Tensor, dst: Quantized, noop_flag: torch.Tensor | None
    ) -> Quantized:
        # Members of a group may have the transpose only.
        if self.rowwise_usage or getattr(dst, GROUP_STATE, None) is None:
            return super()._update(src, dst, noop_flag)
        src = source_tensor(src, dst.device)
        if src.numel() > 0:
            self._run(src, dst, noop_flag)
        return dst

    def _fits(self, dst: Quantized) -> bool:  # a stale transpose is filled
        return (dst._data is not None, dst._transpose is not None) == self._directions()

    def _fill_part(self, src: torch.Tensor, fresh: Quantized, noop: torch.Tensor | None) -> None:
        """Casts a part with the scale of the whole tensor.

        Errors: ValueError for magnitudes that would saturate.
        """
        if not _native.has_values(src):
            return
        scale_inv = fresh._scale_inv
        amax = torch.zeros(1, dtype=torch.float32, device=src.device)
        _native.verbs.amax(src, amax, _native.threads())
        limit = torch.finfo(TE_DType_To_Torch[self.dtype]).max * float(scale_inv)
        require_fitting("Float8Tensor", float(amax), limit)
        self._cast(src, fresh, noop, self._scale_of(scale_inv), self._measured(amax))

    def _scale_of(self, scale_inv: torch.Tensor) -> torch.Tensor:
        """Returns the scale of a tensor's cast, computed from the stored scale_inv."""
        return scale_inv.reciprocal()

    def _measured(self, amax: torch.Tensor) -> torch.Tensor:
        """Returns the tensor that stores the amax of a part."""
        return amax

    def _cast(
        self,
        src: torch.Tensor,
        dst: Quantized,
        noop: torch.Tensor | None,
        scale: torch.Tensor,
        amax: torch.Tensor,
    ) -> None:
        """Fills `dst` with a given scale; sets `amax` to the maximum of itself and the input's."""
        data, transpose, scale_inv = dst._data, dst._transpose, dst._scale_inv
        spec = _native.make_spec(self._scheme(), *self._directions())
        buffers = (data, scale_inv, transpose, scale_inv, None, amax, None)
        _native.quantize(spec, src, buffers, noop, scale=scale)

    def _label(self, dst: Quantized) -> None:
        dst._fp8_dtype = self.dtype
        dst._transpose_invalid = dst._transpose is None

    def quantize_impl(self, tensor: torch.Tensor) -> Float8Tensor:
        out = super().quantize_impl(tensor)
        self._label(out)
        return out

    def _group_state(self, count: int, device: Device) -> dict[str, torch.Tensor]:
        return {"amax": torch.zeros(count, dtype=torch.float32, device=device)}

    def get_columnwise_shape(self, rowwise_data_shape: Iterable[int]) -> tuple[int, ...]:
        """Returns the shape of columnwise codes, with the last dimension first."""
        return tuple(to_columnwise(tuple(rowwise_data_shape)))

    def create_tensor_from_data(
        self,
        data: torch.Tensor,
        fake_dtype: torch.dtype = torch.float32,
        requires_grad: bool = False,
        internal: bool = False,
    ) -> Float8Tensor | Float8TensorStorage:
        """Returns a quantized tensor over existing codes: uint8 or a torch float8 type."""
        assert data.dtype in (torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2), (
            f"create_tensor_from_data: codes must be uint8 or float8, got {data.dtype}"
        )
        fields = {
            "data": data.view(torch.uint8),
            "fp8_scale_inv": self._scale_inv_for(data),
            "data_transpose": None,
            **self.storage_metadata(fake_dtype),
        }
        if internal:
            return Float8TensorStorage(**fields)
        return Float8Tensor(
            shape=data.shape, dtype=fake_dtype, requires_grad=requires_grad, **fields
        )

    def _scale_inv_for(self, data: torch.Tensor) -> torch.Tensor:
        return torch.empty(1, dtype=torch.float32, device=data.device)

    def supports_only_rowwise_all_gather(self) -> bool:
        return True

    def is_quantizable(self, inp: torch.Tensor) -> bool:
        return True


class Float8Quantizer(_Float8QuantizerBase):
    """FP8 with a given scale (delayed scaling).

    scale: a float32 tensor of one element that the caller keeps; each call reads it.
    amax: a float32 tensor of one element that the caller keeps; each call sets it to the maximum of
        itself and the input's amax. An empty tensor is not written.
    fp8_dtype: E4M3 or E5M2, in any form that DType.cast() accepts.
    rowwise, columnwise: the directions of new tensors; set_usage() changes them.
    Errors: TypeError unless scale and amax are tensors.
    """

    SCALE_IS_GIVEN = True

    def __init__(
        self,
        scale: torch.Tensor,
        amax: torch.Tensor,
        fp8_dtype: DTypeSpelling,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        for name, state in (("scale", scale), ("amax", amax)):
            if not isinstance(state, torch.Tensor):
                raise TypeError(
                    f"Float8Quantizer: {name} must be a torch.Tensor, got {type(state).__name__}"
                )
        self.scale = scale
        self.amax = amax
        self.dtype = DType.cast(fp8_dtype)

    def _fill(self, src: torch.Tensor, dst: Quantized, noop: torch.Tensor | None) -> None:
        scale, amax = self.scale, self.amax
        # A tensor in a graph does not turn its quantizer's scale into one, except in torch.export,
        # which makes the scale a constant of the program.
        if _native.in_memory(scale) and not (is_recorded() or _native.has_values(src)):
            scale, amax = (torch.ones(1, dtype=torch.float32, device=src.device) for _ in range(2))
        # Programs that compute the scale themselves pass an empty amax.
        if not amax.numel():
            amax = torch.zeros(1, dtype=torch.float32, device=src.device)
        self._cast(src, dst, noop, scale, amax)

    def _scale_of(self, scale_inv: torch.Tensor) -> torch.Tensor:
        own = self.scale.detach().reshape(1)
        return own if torch.equal(own.reciprocal(), scale_inv) else scale_inv.reciprocal()

    def _measured(self, amax: torch.Tensor) -> torch.Tensor:
        return self.amax

    def _scale_inv_for(self, data: torch.Tensor) -> torch.Tensor:
        return torch.reciprocal(self.scale.detach().reshape(1)).to(data.device)

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Replaces `amax` by that of `tensor`, which is NaN if `tensor` contains NaN."""
        low, high = tensor.aminmax()
        self.amax.copy_(torch.max(-low, high))

    def _get_compatible_recipe(self) -> type:
        return recipe.DelayedScaling


Float8Quantizer.register_node_class("dtype", state=("scale", "amax"))


class Float8CurrentScalingQuantizer(_Float8QuantizerBase):
    """FP8 with a scale computed from the amax of each input.

    fp8_dtype: E4M3 or E5M2, in any form that DType.cast() accepts.
    rowwise, columnwise: the directions of new tensors; set_usage() changes them.
    with_amax_reduction: the amax is the largest over amax_reduction_group, so that all ranks share
        one scale.
    amax_reduction_group: a process group; None is the world.
    force_pow_2_scales: rounds the scale down to a power of two.
    amax_epsilon: the smallest amax that a scale is computed from.
    device, use_existing_amax, scale, amax: accepted as in TransformerEngine, and ignored.
    """

    # For objects that are rebuilt from their fields.
    with_amax_reduction = False
    amax_reduction_group = None

    def __init__(
        self,
        fp8_dtype: DTypeSpelling,
        device: torch.device | str | None = None,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        use_existing_amax: bool | None = None,
        with_amax_reduction: bool = False,
        amax_reduction_group: Group = None,
        force_pow_2_scales: bool = False,
        amax_epsilon: float = 0.0,
        scale: torch.Tensor | None = None,
        amax: torch.Tensor | None = None,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        unused = {"use_existing_amax": use_existing_amax, "scale": scale, "amax": amax}
        for name, value in unused.items():
            if value is not None and value is not False:
                warnings.warn(
                    f"Float8CurrentScalingQuantizer does not use {name}",
                    DeprecationWarning,
                    stacklevel=2,
                )
        self.dtype = DType.cast(fp8_dtype)
        self.with_amax_reduction = with_amax_reduction
        self.amax_reduction_group = amax_reduction_group
        self.force_pow_2_scales = force_pow_2_scales
        self.amax_epsilon = amax_epsilon

    def _group_state(self, count: int, device: Device) -> dict[str, torch.Tensor]:
        scale = torch.ones(count, dtype=torch.float32, device=device)
        return {"scale": scale, **super()._group_state(count, device)}

    def _options(self) -> tuple[tuple[str, Any], ...]:
        return (
            ("amax_epsilon", self.amax_epsilon),
            ("force_pow_2_scales", self.force_pow_2_scales),
        )

    def _fill(self, src: torch.Tensor, dst: Quantized, noop: torch.Tensor | None) -> None:
        amax = None
        if self.with_amax_reduction:
            amax = torch.empty(1, dtype=torch.float32, device=src.device)
            _native.verbs.amax(src, amax, _native.threads())
            reduce_max(amax, self.amax_reduction_group)
        self._fill_given(src, dst, noop, amax)

    def _fill_measured(self, src: torch.Tensor, dst: Quantized, amax: torch.Tensor) -> None:
        """Fills `dst` with an amax measured elsewhere, which is reduced like its own."""
        if self.with_amax_reduction:
            reduce_max(amax, self.amax_reduction_group)
        self._fill_given(src, dst, None, amax)

    def _fill_given(
        self,
        src: torch.Tensor,
        dst: Quantized,
        noop: torch.Tensor | None,
        amax: torch.Tensor | None,
    ) -> None:
        data, transpose, scale_inv = dst._data, dst._transpose, dst._scale_inv
        # A group stores the scales and the amaxes of its members.
        scale, measured = dst.__dict__.get(GROUP_STATE, (None, None))
        buffers = (data, scale_inv, transpose, scale_inv, scale, measured, None)
        _native.quantize(self._spec(), src, buffers, noop, amax=amax)

    def is_requantization_safe(self) -> bool:
        return True

    def _get_compatible_recipe(self) -> type:
        return recipe.Float8CurrentScaling


Float8CurrentScalingQuantizer.register_value_class("dtype", "force_pow_2_scales", "amax_epsilon")


class Float8Tensor(Float8TensorStorage, SchemeTensor):  # type: ignore[override]  # device: a field in PyTorch's stub
    """A tensor of FP8 codes with one scale.

    The arguments are those of Float8TensorStorage and of QuantizedTensor.
    """

    PAYLOAD = (
        "data",
        "element",
        "fp8_scale_inv",
        "dtype",
        "shape",
        "data_transpose",
        "quantizer",
        "keeps_transpose",
    )
    RAW_FIELD = "_data"
    MASTER_IN_HYBRID = True

    def _drop_derived(self) -> None:
        self._reset_caches()

    def _restore_derived(self) -> None:
        if not self._reads_any_layout():
            self._create_transpose()

    def _master_route(self, piece: Piece) -> Route:
        if self._data is None and piece.shard is not None:
            raise NotImplementedError(
                "quantize_master_weights: shards of weights that have only their transpose are not "
                "supported"
            )
        quantizer = self._quantizer
        if quantizer.SCALE_IS_GIVEN:
            return Route(quantize_delayed)
        return Route(quantize_current, (), (quantizer.dtype.name, *quantizer._options()))

    @classmethod
    def make_like(  # type: ignore[override]  # of tensors of this class
        cls,
        tensor: Float8Tensor,
        *,
        shape: Iterable[int] | None = None,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
        data: torch.Tensor | None = None,
        data_transpose: torch.Tensor | None = None,
    ) -> Float8Tensor:
        """Returns an alias of `tensor` with other outer metadata, or over other codes."""
        alias: Any = super().make_like(
            tensor, shape=shape, dtype=dtype, requires_grad=requires_grad
        )
        alias._transpose_invalid = tensor._transpose_invalid
        if data is not None:
            alias._data = data
            alias._transpose, alias._transpose_invalid = None, True
        if data_transpose is not None:
            alias._transpose, alias._transpose_invalid = data_transpose, False
        return tensor._mark_view(alias)

    @classmethod
    def _like_codes(
        cls,
        tensor: Float8Tensor,
        shape: Iterable[int],
        data: torch.Tensor | None,
        data_transpose: torch.Tensor | None,
    ) -> Float8Tensor:
        """Returns a tensor of the class of `tensor` over these codes, with the same scale."""
        fields = tensor.get_metadata()
        fields.update(data=data, data_transpose=data_transpose)
        return type(tensor)(shape=shape, dtype=tensor.dtype, **fields)

    def _rebind(self, tensor: SchemeTensor) -> None:
        super()._rebind(tensor)
        self._transpose_invalid = tensor._transpose_invalid

    def contiguous(
        self, memory_format: torch.memory_format = torch.contiguous_format
    ) -> Float8Tensor:
        """Returns this tensor if its codes have the memory format, else a copy of every buffer.

        The transpose of a copy is contiguous in any case.
        """
        data = self._data
        if data is None or data.is_contiguous(memory_format=memory_format):
            return self
        copies = self._cloned_buffers(torch.contiguous_format)
        copies["data"] = data.detach().clone(memory_format=memory_format)
        return _IdentityFunc.apply(self, copies)

    def _payload(self) -> dict[str, Any]:
        fields = super()._payload()
        fields["keeps_transpose"] = self._has_columnwise() and self._data is not None
        if self._data is not None:  # the transpose is derived again
            fields["data_transpose"] = None
            aliases.register(self)  # copy.copy() makes an alias
        return fields

    @classmethod
    def _make_in_reduce_ex(cls, *arguments: Any) -> Float8Tensor:
        before = cls._payload_keywords().index("keeps_transpose")
        tensor = super()._make_in_reduce_ex(*arguments[:before])
        if any(arguments[before:]) and not _is_loading_objects_first():
            tensor._create_transpose()
        return tensor


def _is_loading_objects_first() -> bool:
    """Returns whether torch.load() reads its older format, with values after the objects.

    The codes are not loaded yet. update_usage() makes the transpose later.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not torch.serialization._legacy_load.__code__:
        frame = frame.f_back
    return frame is not None


def _make_float8_tensor_in_reduce_ex(*arguments: Any) -> Float8Tensor:
    """Makes the tensor of a pickle."""
    return Float8Tensor._make_in_reduce_ex(*arguments)


register_family(
    Float8Tensor,
    Float8TensorStorage,
    Float8Quantizer,
    Float8CurrentScalingQuantizer,
    reconstructor=_make_float8_tensor_in_reduce_ex,
)
