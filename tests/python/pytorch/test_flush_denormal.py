# SPDX-License-Identifier: Apache-2.0
"""Tests results under torch.set_flush_denormal(True), a setting of the calling thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch

import narrowfloat as nf
from narrowfloat import pytorch as nfp

E4M3 = torch.float8_e4m3fn
Result = TypeVar("Result")


def flushing(call: Callable[[], Result]) -> Result:
    """Returns what the call returns under flush to zero."""
    if not torch.set_flush_denormal(True):
        pytest.skip("PyTorch cannot set flush to zero on this machine")
    try:
        return call()
    finally:
        torch.set_flush_denormal(False)


def test_delayed_scaling_keeps_a_subnormal_amax() -> None:
    x = torch.full((16, 16), 2.0**-140)
    amax = torch.zeros(1)
    quantizer = nfp.Float8Quantizer(torch.ones(1), amax, E4M3)
    flushing(lambda: quantizer(x))
    assert amax.item() == 2.0**-140


SCHEMES = pytest.mark.parametrize("scheme", ["nvfp4", "mxfp8_e4m3", "fp8_block128x128_e4m3"])
EXPONENTS = pytest.mark.parametrize("exponent", [-130, -110, 0, 110])
CONVENTION = "compressed-tensors"


def sample(scheme: str, exponent: int) -> nf.QuantizedTensor:
    x = np.random.default_rng(3).standard_normal((128, 128))
    return nf.quantize(np.ldexp(x, exponent).astype(np.float32), scheme)


@SCHEMES
@EXPONENTS
def test_save_writes_the_same_bytes(scheme: str, exponent: int, tmp_path: Path) -> None:
    tensors = {"a.weight": sample(scheme, exponent)}
    path, flushed = tmp_path / "f.safetensors", tmp_path / "flushed.safetensors"
    nf.save(path, tensors, convention=CONVENTION)
    flushing(lambda: nf.save(flushed, tensors, convention=CONVENTION))
    assert path.read_bytes() == flushed.read_bytes()


@SCHEMES
@EXPONENTS
def test_load_reads_the_same_values(scheme: str, exponent: int, tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    nf.save(path, {"a.weight": sample(scheme, exponent)}, convention=CONVENTION)

    def values() -> np.ndarray:
        return nf.load(path, from_=CONVENTION, dtype="float32")["a.weight"]

    def buffers() -> dict[str, np.ndarray]:
        return nf.load(path, from_=CONVENTION)["a.weight"].buffers

    assert values().tobytes() == flushing(values).tobytes()
    expected = {role: array.tobytes() for role, array in buffers().items()}
    assert expected == {role: array.tobytes() for role, array in flushing(buffers).items()}
