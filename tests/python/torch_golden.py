# SPDX-License-Identifier: Apache-2.0
"""Converts recorded arrays to torch tensors and back by their bytes, and compares them."""

import ml_dtypes
import numpy as np
import torch
from golden import assert_same

FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_BY_NUMPY = {
    np.dtype(ml_dtypes.bfloat16): torch.bfloat16,
    np.dtype(ml_dtypes.float8_e4m3fn): torch.float8_e4m3fn,
    np.dtype(ml_dtypes.float8_e5m2): torch.float8_e5m2,
}


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Returns a new tensor with the bytes of `array`."""
    array = np.ascontiguousarray(array)
    if array.dtype not in _BY_NUMPY:
        return torch.from_numpy(array.copy())
    bits = torch.from_numpy(array.view(f"u{array.dtype.itemsize}").copy())
    return bits.view(_BY_NUMPY[array.dtype])


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Returns the bytes of `tensor`, in row-major order."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def assert_tensor(actual: torch.Tensor, expected: np.ndarray | torch.Tensor, what: str) -> None:
    """Checks that bits are equal; any NaN equals any NaN. A tensor's type and shape count too."""
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype and actual.shape == expected.shape, (
            f"{what}: {actual.dtype} {tuple(actual.shape)}, expected {expected.dtype} "
            f"{tuple(expected.shape)}"
        )
        kinds = {ours: theirs for theirs, ours in _BY_NUMPY.items()}
        kind = kinds.get(expected.dtype)
        expected = bytes_of(expected)
        if kind is not None:
            expected = expected.view(kind)
    assert_same(bytes_of(actual), expected, what)
