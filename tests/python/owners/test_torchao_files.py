# SPDX-License-Identifier: Apache-2.0
"""Reads files that torchao makes, and compares the values with its tensors, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli import run, run_json

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("torchao", reason="torchao is not installed")

from safetensors.torch import load_file, save_file
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Float8Tensor, PerRow, PerTensor

import narrowfloat as nf

SHAPE = (200, 320)
E4M3, FP4 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2


def weight() -> Any:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))


def whole() -> Any:
    return weight().abs().max() / (448 * 6)


TENSORS = {
    "float8 rows": (lambda: Float8Tensor.from_hp(weight(), granularity=PerRow()), None),
    "float8 tensor": (lambda: Float8Tensor.from_hp(weight(), granularity=PerTensor()), "fp8_e4m3"),
    "mxfp8": (lambda: MXTensor.to_mx(weight(), E4M3, 32), "mxfp8_e4m3"),
    "mxfp8 swizzled": (
        lambda: MXTensor.to_mx(weight(), E4M3, 32, is_swizzled_scales=True), "mxfp8_e4m3",
    ),
    "mxfp4": (lambda: MXTensor.to_mx(weight(), FP4, 32), "mxfp4"),
    "mxfp4 swizzled": (
        lambda: MXTensor.to_mx(weight(), FP4, 32, is_swizzled_scales=True), "mxfp4",
    ),
    "nvfp4 of one level": (lambda: NVFP4Tensor.to_nvfp4(weight()), "nvfp4"),
    "nvfp4": (lambda: NVFP4Tensor.to_nvfp4(weight(), per_tensor_scale=whole()), "nvfp4"),
    "nvfp4 swizzled": (
        lambda: NVFP4Tensor.to_nvfp4(weight(), per_tensor_scale=whole(), is_swizzled_scales=True),
        "nvfp4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_values_are_the_owners(name: str, tmp_path: Path) -> None:
    make, scheme = TENSORS[name]
    tensor, bias = make(), torch.ones(3)
    data, metadata = flatten_tensor_state_dict({"a.weight": tensor, "a.bias": bias})
    source = tmp_path / "theirs.safetensors"
    save_file(data, source, metadata=metadata)
    assert run_json("inspect", source)["convention"] == "torchao"
    run("dequantize", source, tmp_path / "out.safetensors", "--dtype", "f32")
    ours = load_file(tmp_path / "out.safetensors")
    assert set(ours) == {"a.weight", "a.bias"} and torch.equal(ours["a.bias"], bias)
    assert torch.equal(ours["a.weight"], tensor.dequantize(torch.float32))
    if scheme is None:
        return
    loaded = nf.load(source, from_="torchao")["a.weight"]
    assert isinstance(loaded, nf.QuantizedTensor) and loaded.spec == scheme


def test_six_bits_are_refused(tmp_path: Path) -> None:
    tensor = MXTensor.to_mx(weight(), "fp6_e3m2", 32)
    data, metadata = flatten_tensor_state_dict({"a.weight": tensor})
    save_file(data, tmp_path / "theirs.safetensors", metadata=metadata)
    refused = run("dequantize", tmp_path / "theirs.safetensors", tmp_path / "out", code=3)
    assert (
        "elem_dtype must be one of float8_e4m3fn" in refused.stderr
        and not (tmp_path / "out").exists()
    )
