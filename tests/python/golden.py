# SPDX-License-Identifier: Apache-2.0
"""Reads the recorded cases of tests/golden with json, numpy and ml_dtypes alone.

A case is a safetensors file whose tensors are all stored as U8. The JSON under the metadata key
"case" has the type and shape of each.
"""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import ml_dtypes
import numpy as np

ROOT = Path(__file__).parents[1] / "golden"

DTYPES = {
    "fp64": np.dtype(np.float64),
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "e8m0": np.dtype(np.uint8),
    "e2m1x2": np.dtype(np.uint8),
    "u8": np.dtype(np.uint8),
}

# Alternatives of the CUDA kernels, which we follow where TransformerEngine's paths differ.
KERNELS = [f"alt.kernel.{kernel}." for kernel in ("current_scaling", "blockwise", "nvfp4")]


class Case:
    """One recorded case: `params`, and tensors by name."""

    def __init__(self, path: Path) -> None:
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        self.name = f"{path.parent.name}/{path.stem}"
        self._meta = json.loads(header.pop("__metadata__")["case"])
        self._entries = header
        self._data = raw[8 + length :]
        self.params = self._meta["params"]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns the stored tensor; if references differ, the primary reference's."""
        begin, end = self._entries[name]["data_offsets"]
        info = self._meta["tensors"][name]
        flat = np.frombuffer(self._data[begin:end], DTYPES[info["dtype"]])
        return flat.reshape(info["shape"])

    def by(self, reference: str, name: str) -> np.ndarray:
        """Returns the tensor of `reference`: its alternative if one is recorded."""
        alternative = f"alt.{reference}.{name}"
        return self[alternative] if alternative in self else self[name]

    def kernel(self, name: str) -> np.ndarray:
        """Returns the tensor of the CUDA kernels: their alternative if one is recorded."""
        return next((self[k + name] for k in KERNELS if k + name in self), self[name])

    @cached_property
    def dequantized(self) -> dict[str, np.ndarray]:
        """Returns the recorded values of the rowwise codes, by dtype name."""
        return {n.split(".")[1]: self[n] for n in self._entries if n.startswith("dequant.")}


def cases(group: str) -> Iterator[Case]:
    """Yields all cases of a group, in the order of their names."""
    for path in sorted((ROOT / group).glob("*.safetensors")):
        yield Case(path)


def assert_same(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Checks that bits are equal; any NaN equals any NaN. `actual` may have bytes as items."""
    values = np.ascontiguousarray(actual).reshape(-1).view(expected.dtype)
    wanted = np.ascontiguousarray(expected).reshape(-1)
    assert values.shape == wanted.shape, f"{what}: {values.shape} items, expected {wanted.shape}"
    bits = np.dtype(f"u{wanted.dtype.itemsize}")
    differ = values.view(bits) != wanted.view(bits)
    if wanted.dtype != np.uint8:
        with np.errstate(invalid="ignore"):
            differ &= ~(np.isnan(values.astype(np.float32)) & np.isnan(wanted.astype(np.float32)))
    where = np.flatnonzero(differ)
    if where.size:
        i = where[0]
        raise AssertionError(
            f"{what}: {where.size} of {wanted.size} differ, first at {i}: expected "
            f"{wanted.view(bits)[i]:#x} ({wanted[i]}), got {values.view(bits)[i]:#x} ({values[i]})"
        )
