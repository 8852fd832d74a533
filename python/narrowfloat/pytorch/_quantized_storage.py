# SPDX-License-Identifier: Apache-2.0
"""The base class of quantized tensors without autograd; functions that save them for backward."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeAlias, overload

import torch

from narrowfloat.pytorch._autograd import count_write, keep_saved, without_gradients
from narrowfloat.pytorch._types import Context, TensorLike

if TYPE_CHECKING:
    from narrowfloat.pytorch.quantized_tensor import Quantizer


def refuse_absent(owner: object, method: str) -> NoReturn:
    """Raises NotImplementedError for a method that the class of `owner` must define."""
    raise NotImplementedError(f"{type(owner).__name__} class does not implement {method} function")


class QuantizedTensorStorage:
    """The buffers of a quantized tensor, without autograd and without torch's operators.

    Fields of every family: `_dtype`, the nominal type, and `_quantizer`, the tensor's quantizer.
    """

    HOLDS_VALUES: ClassVar[bool] = False  # whether it has values instead of codes and scales

    _dtype: torch.dtype
    _quantizer: Any  # a Quantizer of the family, or None

    if TYPE_CHECKING:
        # A family defines buffers and settings in a table, and gets methods made from it.
        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401  # a field of any type
        def __setattr__(self, name: str, value: Any) -> None: ...  # noqa: ANN401  # likewise

    @property
    def custom(self) -> bool:
        """Returns whether the tensor's quantizer computes its products (`qgemm`)."""
        return False

    @property
    def shape(self) -> torch.Size:
        """Returns the shape of the tensor before it was quantized."""
        return torch.Size(self.size())

    def _leaves(self) -> list[QuantizedTensorStorage]:
        """Returns the storages that have buffers: this one, or its parts."""
        return [self]

    def _block_boundary(self, along_rows: bool) -> int:
        """Returns the number that the row or column bounds of a part must be a multiple of."""
        return 1

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Keeps (None), drops (False) or requires (True) each direction."""
        refuse_absent(self, "update_usage")

    def get_usages(self) -> dict[str, bool]:
        """Returns for each direction whether its buffers are present."""
        refuse_absent(self, "get_usages")

    def prepare_for_saving(
        self,
    ) -> tuple[list[torch.Tensor | None], QuantizedTensorStorage]:
        """Returns the buffers and removes them here; restore_from_saved() restores them."""
        refuse_absent(self, "prepare_for_saving")

    def restore_from_saved(
        self, tensors: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        """Restores the buffers from the first tensors, and returns the remaining tensors."""
        refuse_absent(self, "restore_from_saved")

    def _get_quantizer(self) -> Quantizer:
        """Returns the tensor's quantizer, or the default one of the family."""
        if self._quantizer is not None:
            return self._quantizer
        return self._build_default_quantizer()

    def _build_default_quantizer(self) -> Quantizer:
        raise ValueError(
            f"{self.__class__.__name__} has no quantizer and no default quantizer is available"
        )

    def quantize_(
        self, tensor: TensorLike, *, noop_flag: torch.Tensor | None = None
    ) -> QuantizedTensorStorage:
        """Quantizes `tensor` into the buffers of this object; does nothing if noop_flag is 1."""
        keep_saved(self)
        self._requantize(tensor, noop_flag)
        count_write(self, noop_flag)
        return self

    @without_gradients
    def _requantize(self, tensor: TensorLike, noop_flag: torch.Tensor | None = None) -> None:
        """Implements quantize_() within an operator, which increments the version itself."""
        plain = tensor.dequantize() if isinstance(tensor, QuantizedTensorStorage) else tensor
        self._get_quantizer().update_quantized(plain, self, noop_flag=noop_flag)

    def update_quantizer(self, quantizer: Quantizer) -> None:
        """Replaces the quantizer, with a warning. Errors: RuntimeError without one."""
        if self._quantizer is None:
            raise RuntimeError("To be updated, the quantized tensor must already have a quantizer")
        if self._quantizer is not quantizer:
            warnings.warn("Quantizer is being updated, results may change", stacklevel=2)
            self._quantizer = quantizer

    def copy_from_storage(self, src: QuantizedTensorStorage) -> None:
        """Copies the buffers that both tensors have."""
        refuse_absent(self, "copy_from_storage")

    def clear(self) -> None:
        """Releases the memory of the buffers. A second call does nothing."""
        refuse_absent(self, "clear")

    def fsdp_buffer_fields(self) -> tuple[str, ...]:
        """Returns the names of the buffers that an all-gather sends, in order."""
        refuse_absent(self, "fsdp_buffer_fields")

    def fsdp_extract_buffers(self) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        """Returns the buffers in the form for sending, and the metadata to rebuild the tensor."""
        refuse_absent(self, "fsdp_extract_buffers")

    def fsdp_assign_gathered(self, buffers: Sequence[torch.Tensor], meta: dict[str, Any]) -> None:
        """Replaces the buffers by gathered ones."""
        refuse_absent(self, "fsdp_assign_gathered")


def prepare_for_saving(
    *tensors: torch.Tensor | QuantizedTensorStorage | None,
) -> tuple[list[torch.Tensor | None], list[QuantizedTensorStorage | None]]:
    """Returns plain tensors for ctx.save_for_backward, and objects for restore_from_saved().

    A storage is replaced by its buffers, and has none until restore_from_saved() is called.
    """
    saved: list[torch.Tensor | None] = []
    objects: list[QuantizedTensorStorage | None] = []
    for tensor in tensors:
        if tensor is None or isinstance(tensor, torch.Tensor):
            saved.append(tensor)
            objects.append(None)
        else:
            buffers, shell = tensor.prepare_for_saving()
            saved.extend(buffers)
            objects.append(shell)
    return saved, objects


Restored: TypeAlias = "list[TensorLike | None]"


@overload
def restore_from_saved(
    tensors: Sequence[QuantizedTensorStorage | None],
    saved_tensors: Sequence[torch.Tensor | None],
    return_saved_tensors: Literal[False] = False,
) -> Restored: ...
@overload
def restore_from_saved(
    tensors: Sequence[QuantizedTensorStorage | None],
    saved_tensors: Sequence[torch.Tensor | None],
    return_saved_tensors: Literal[True],
) -> tuple[Restored, list[torch.Tensor | None]]: ...
def restore_from_saved(
    tensors: Sequence[QuantizedTensorStorage | None],
    saved_tensors: Sequence[torch.Tensor | None],
    return_saved_tensors: bool = False,
) -> Restored | tuple[Restored, list[torch.Tensor | None]]:
    """Returns the arguments of prepare_for_saving(); optionally also the remaining tensors."""
    left = list(saved_tensors)
    restored: Restored = []
    for shell in tensors:
        if shell is None or isinstance(shell, torch.Tensor):
            restored.append(left[0])
            left = left[1:]
        else:
            left = list(shell.restore_from_saved(left))
            restored.append(shell)
    return (restored, left) if return_saved_tensors else restored


def restore_from_func_ctx(
    ctx: Context, return_saved_tensors: bool = False
) -> Restored | tuple[Restored, list[torch.Tensor | None]]:
    """Returns restore_from_saved() of `ctx.tensor_objects` and `ctx.saved_tensors`.

    Removes the objects from `ctx`, so that their memory can be freed.
    Errors: AttributeError if `ctx` has no saved objects.
    """
    if not hasattr(ctx, "tensor_objects") or ctx.tensor_objects is None:
        raise AttributeError("ctx must have .tensor_objects to restore saved tensors")
    objects, saved = ctx.tensor_objects, ctx.saved_tensors
    ctx.tensor_objects = None
    if return_saved_tensors:
        return restore_from_saved(objects, saved, True)
    return restore_from_saved(objects, saved)
