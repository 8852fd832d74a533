# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk as a mapping whose tensors are read when asked for."""

import os
from collections.abc import Iterator, Mapping

import numpy as np

from narrowfloat import _core
from narrowfloat._core import QuantizedTensor


class LazyTensors(Mapping[str, np.ndarray | QuantizedTensor]):
    """Tensors of a checkpoint by name; each access reads one anew."""

    def __init__(self, checkpoint: _core.Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._names = dict.fromkeys(checkpoint.names())

    def __getitem__(self, name: str) -> np.ndarray | QuantizedTensor:
        if name not in self._names:
            raise KeyError(name)
        return self._checkpoint.read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load(path: str | os.PathLike[str]) -> LazyTensors:
    """The tensors of a safetensors file, an index file, or a folder of either, in sorted order.

    Types:   arrays of the file's dtype, through ml_dtypes for BF16 and the FP8 types; types
             narrower than a byte as their bytes. What save() or the command line quantized comes
             as QuantizedTensor.
    Errors:  ValueError if there is no such checkpoint or it is damaged; OSError if it cannot be
             read; KeyError for a name it does not have.
    """
    return LazyTensors(_core.Checkpoint(path))
