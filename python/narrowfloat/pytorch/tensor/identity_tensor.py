# SPDX-License-Identifier: Apache-2.0
"""A quantizer that does not quantize, for directions or slots in high precision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from narrowfloat.common import recipe
from narrowfloat.pytorch._autograd import _IdentityFunc
from narrowfloat.pytorch._types import Quantized
from narrowfloat.pytorch.quantized_tensor import Quantizer
from narrowfloat.pytorch.tensor._families import register_family
from narrowfloat.pytorch.tensor._master_weights import Route, quantize_identity
from narrowfloat.pytorch.tensor._scheme_quantizer import check_same_matrix, source_tensor
from narrowfloat.pytorch.tensor._scheme_tensor import SchemeTensor
from narrowfloat.pytorch.tensor.storage.identity_tensor_storage import IdentityTensorStorage

if TYPE_CHECKING:
    from narrowfloat.pytorch.tensor._master_weights import Piece


class IdentityQuantizer(Quantizer["IdentityTensor"]):
    """Does not quantize, for places that need a quantizer.

    dtype: tensors are converted to it; None keeps their type.
    rowwise, columnwise: the directions of new tensors; set_usage() changes them.
    """

    def __init__(
        self,
        *,
        dtype: torch.dtype | None = None,
        rowwise: bool = True,
        columnwise: bool = True,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = dtype

    def _held(self, tensor: torch.Tensor) -> torch.Tensor:
        data = source_tensor(tensor, tensor.device).detach()
        return data if self.dtype is None else data.to(self.dtype)

    def _wrap(
        self,
        data: torch.Tensor,
        dtype: torch.dtype,
        requires_grad: bool = False,
    ) -> IdentityTensor:
        if self.internal:
            bare: Any = IdentityTensorStorage(hp_data=data, fake_dtype=dtype, quantizer=self)
            return bare
        return IdentityTensor(
            shape=data.shape,
            dtype=dtype,
            hp_data=data,
            quantizer=self,
            requires_grad=requires_grad,
        )

    def quantize_impl(self, tensor: torch.Tensor) -> IdentityTensor:
        data = self._held(tensor)
        return self._wrap(data, data.dtype)

    def make_empty(
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> IdentityTensor:
        held = dtype if self.dtype is None else self.dtype
        data = torch.empty(tuple(shape), dtype=held, device=device, pin_memory=pin_memory)
        return self._wrap(data, held, requires_grad)

    def update_quantized(
        self,
        src: torch.Tensor,
        dst: Quantized,
        *,
        noop_flag: torch.Tensor | None = None,
    ) -> Quantized:
        """Writes the values in place, converted to the type that `dst` holds.

        TransformerEngine replaces the memory if types differ; aliases would lose the write.
        A noop_flag other than 0 does not change the values of `dst`.
        Errors: ValueError unless `dst` is an IdentityTensorStorage of the same shape.
        """
        if not isinstance(dst, self.STORAGE):
            raise ValueError(
                f"IdentityQuantizer can only update IdentityTensor, got {type(dst).__name__}"
            )
        data, held = self._held(src), dst._hp_data
        if held is None:
            if noop_flag is None or float(noop_flag) == 0:
                dst._hp_data, dst._dtype = data.clone(), data.dtype  # `data` may be the source
            return dst
        if data.shape != held.shape:
            check_same_matrix(data.shape, held.shape)
            data = data.reshape(held.shape)
        with torch.no_grad():
            if noop_flag is None:
                held.copy_(data)
            else:
                held.copy_(torch.where(noop_flag.reshape(()) == 0, data.to(held), held))
        return dst

    def _check_group(self) -> None:
        raise NotImplementedError(f"GroupedTensor does not support {type(self).__name__}")

    def holds_values(self) -> tuple[bool, bool]:
        return True, True

    def is_requantization_safe(self) -> bool:
        return True

    def _get_compatible_recipe(self) -> type:
        return recipe.CustomRecipe


IdentityQuantizer.register_node_class("dtype")


class IdentityTensor(IdentityTensorStorage, SchemeTensor):  # type: ignore[override]  # device: a field in PyTorch's stub
    """A tensor with values in high precision.

    The arguments are those of IdentityTensorStorage and of QuantizedTensor.
    """

    PAYLOAD = ("buffers", "quantizer", "dtype", "shape")
    RAW_FIELD = "_hp_data"
    MASTER_IN_HYBRID = True

    def _master_route(self, piece: Piece) -> Route:
        return Route(quantize_identity)

    def _gather_usages(self, module: torch.nn.Module) -> tuple[bool, bool]:
        return True, True

    def view(self, *shape: Any) -> torch.Tensor:
        if len(shape) == 1 and isinstance(shape[0], torch.dtype):
            raise TypeError("view: an IdentityTensor cannot be seen as another type")
        return SchemeTensor.view(self, *shape)

    def contiguous(
        self, memory_format: torch.memory_format = torch.contiguous_format
    ) -> IdentityTensor:
        """Returns this tensor, or one over a copy in the memory format."""
        data = self._hp_data
        if data is None or data.is_contiguous(memory_format=memory_format):
            return self
        return _IdentityFunc.apply(self, {"hp_data": data.contiguous(memory_format=memory_format)})

    def _plain_copy(self) -> torch.Tensor:
        return self._plain().clone()  # _plain() may return the buffer itself

    def _set_plain_data(self, tensor: torch.Tensor) -> None:
        quantizer = self._quantizer.copy()
        quantizer.internal = False
        self._rebind(quantizer.quantize_impl(tensor))


def _make_identity_tensor_in_reduce_ex(*arguments: Any) -> IdentityTensor:
    """Makes the tensor of a pickle."""
    return IdentityTensor._make_in_reduce_ex(*arguments)


register_family(
    IdentityTensor,
    IdentityTensorStorage,
    IdentityQuantizer,
    default=lambda storage: IdentityQuantizer(),
    reconstructor=_make_identity_tensor_in_reduce_ex,
)
