# SPDX-License-Identifier: Apache-2.0
"""Methods of torch.Tensor that read the memory of a tensor without an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch.utils.weak import WeakIdKeyDictionary

# Empty storages, by the storage that PyTorch gives a wrapper, which has a size but no bytes.
_empty: Any = WeakIdKeyDictionary()


class WithoutMemory:
    """A wrapper without memory of its own: the bytes are in its buffers."""

    if TYPE_CHECKING:
        device: torch.device

        def _live_buffers(self) -> list[torch.Tensor]: ...

    def untyped_storage(self) -> torch.UntypedStorage:
        """Returns an empty storage: the bytes are in the inner buffers.

        It is the same one at each call, because torch.compile compares storages to find results of
        a graph that are its inputs.
        """
        own = torch._C.TensorBase.untyped_storage(self)  # type: ignore[arg-type]  # self: a tensor
        if own not in _empty:
            _empty[own] = torch.UntypedStorage(0, device=self.device)
        return _empty[own]

    __dlpack_c_exchange_api__: Any = None  # torch.Tensor's function reads the memory of the wrapper

    def __dlpack__(self, **kwargs: Any) -> NoReturn:
        raise BufferError(
            "dlpack: a quantized tensor is not an array of values; pass dequantize() or a buffer, "
            f"got {type(self).__name__}"
        )

    def apply_(self, callable: Callable[..., Any]) -> NoReturn:
        raise TypeError(
            "apply_: needs a tensor of plain values, as dequantize() gives, got "
            f"{type(self).__name__}"
        )

    def share_memory_(self) -> Self:
        """Moves every buffer to shared memory."""
        for buffer in self._live_buffers():
            buffer.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Returns whether every buffer is in shared memory."""
        return all(buffer.is_shared() for buffer in self._live_buffers())
