# SPDX-License-Identifier: Apache-2.0
"""Tests load() and save(): files of arrays and quantized tensors."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import narrowfloat as nf

X = np.random.default_rng(4).standard_normal((33, 65)).astype(np.float32)
ARRAYS = {
    "f32": X,
    "bf16": X.astype(ml_dtypes.bfloat16),
    "f16 transposed": X.astype(np.float16).T,
    "e4m3": X.astype(ml_dtypes.float8_e4m3fn),
    "e5m2": X.astype(ml_dtypes.float8_e5m2),
    "e8m0": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu),
    "bool": X > 0,
    "i64": np.arange(5),
    "c64": np.full(3, 1 + 2j, np.complex64),
    "scalar": np.array(3.5, np.float32),
    "empty": np.zeros((0, 7), np.float16),
}


def write_raw(path: Path, entries: dict[str, object], data: bytes) -> Path:
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def test_arrays_come_back(tmp_path: Path) -> None:
    path = tmp_path / "arrays.safetensors"
    nf.save(path, ARRAYS)
    loaded = nf.load(str(path))
    assert list(loaded) == sorted(ARRAYS)
    assert len(loaded) == len(ARRAYS) and "f32" in loaded and "other" not in loaded
    for name, expected in ARRAYS.items():
        found = loaded[name]
        assert found.dtype == expected.dtype and found.shape == expected.shape, name
        assert found.tobytes() == expected.tobytes(), name
    assert loaded["f32"] is not loaded["f32"]


@pytest.mark.parametrize("scheme", nf.schemes())
def test_quantized_tensors_come_back(scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    q = nf.quantize(X[:32, :64].astype(np.float16), scheme, columnwise=True)
    nf.save(path, {"weight": q, "bias": X[0]})
    loaded = nf.load(tmp_path)
    assert list(loaded) == ["bias", "weight"]
    weight = loaded["weight"]
    assert weight.spec == q.spec and weight.shape == q.shape and weight.dtype == q.dtype
    assert weight.buffers.keys() == q.buffers.keys()
    for key, value in q.buffers.items():
        np.testing.assert_array_equal(weight.buffers[key], value)
    np.testing.assert_array_equal(weight.dequantize(), q.dequantize())
    nf.save(tmp_path / "again.safetensors", loaded)
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_types_narrower_than_a_byte_come_as_bytes(tmp_path: Path) -> None:
    entries = {
        "f4": {"dtype": "F4", "shape": [2, 6], "data_offsets": [0, 6]},
        "f6": {"dtype": "F6_E2M3", "shape": [2, 2], "data_offsets": [6, 9]},
        "none": {"dtype": "F4", "shape": [0, 2**62], "data_offsets": [9, 9]},
    }
    loaded = nf.load(write_raw(tmp_path / "narrow.safetensors", entries, bytes(range(9))))
    assert loaded["f4"].dtype == np.uint8 and loaded["f4"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded["f6"].dtype == np.uint8 and loaded["f6"].tolist() == [6, 7, 8]
    assert loaded["none"].dtype == np.uint8 and loaded["none"].shape == (0, 2**61)


@pytest.mark.parametrize(
    ("save", "error", "message"),
    [
        (
            lambda path: nf.save(path, {"a": X.astype(">f4")}),
            TypeError,
            "save: a must have a dtype of whole bytes that safetensors names, got >f4",
        ),
        (
            lambda path: nf.save(path, {"a": X.astype(ml_dtypes.float4_e2m1fn)}),
            TypeError,
            "save: a must have a dtype of whole bytes that safetensors names, got float4_e2m1fn",
        ),
        (
            lambda path: nf.save(path, {"a": [1.0]}),
            TypeError,
            "save: a must be a NumPy array or a QuantizedTensor, got list",
        ),
        (lambda path: nf.save(path, {1: X}), TypeError, "save: names must be str, got 1"),
        (
            lambda path: nf.save(path, {"\ud800": X}),
            ValueError,
            "save: names must be encodable as UTF-8, got '\\ud800'",
        ),
        (
            lambda path: nf.quantization_config({"\ud800": X}),
            ValueError,
            "save: names must be encodable as UTF-8, got '\\ud800'",
        ),
        (
            lambda path: nf.save(path, {"w": np.ma.masked_less(X, 2)}),
            TypeError,
            "save: w must be a NumPy array or a QuantizedTensor, got numpy.ma.MaskedArray",
        ),
        (
            lambda path: nf.save(path, [X]),
            TypeError,
            "save: tensors must be a mapping of names to arrays, got list",
        ),
    ],
)
def test_what_cannot_be_saved(
    save: Callable[[Path], None], error: type, message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        save(tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_partial_tensor_cannot_be_saved(tmp_path: Path) -> None:
    whole = nf.quantize(X, "fp8_e4m3").buffers
    partial = {key: whole[key] for key in ("rowwise_data", "rowwise_scale_inv")}
    with pytest.raises(ValueError, match=r"^save: scale is missing$"):
        nf.save(tmp_path / "a", {"w": nf.from_buffers("fp8_e4m3", X.shape, partial)})
    assert not list(tmp_path.iterdir())


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "none"))):
        nf.load(tmp_path / "none")
    damaged = tmp_path / "damaged.safetensors"
    nf.save(damaged, {"a": X})
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(ValueError, match=re.escape(str(damaged))):
        nf.load(damaged)
    nf.save(tmp_path / "whole.safetensors", {"a": X})
    loaded = nf.load(tmp_path / "whole.safetensors")
    with pytest.raises(KeyError, match=r"^'b'$"):
        loaded["b"]
    (tmp_path / "whole.safetensors").write_bytes(b"")
    # The file changed after it was opened: reading raises an error instead of returning bytes.
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "whole.safetensors"))):
        loaded["a"]


def test_convert_writes_another_convention(tmp_path: Path) -> None:
    weight = np.linspace(-1, 1, 128 * 256, dtype=np.float32).reshape(128, 256)
    nf.save(tmp_path / "ours.safetensors", {"a.weight": nf.quantize(weight, "mxfp8_e4m3")})
    out = tmp_path / "theirs.safetensors"
    done = nf.convert(tmp_path / "ours.safetensors", out, "compressed-tensors")
    assert (done["tensors_converted"], done["format"]) == (1, "MXFP8")
    assert set(nf.load(out)) == {"a.weight", "a.weight_scale"}
    with pytest.raises(ValueError, match="--overwrite is needed"):
        nf.convert(tmp_path / "ours.safetensors", out, "compressed-tensors")
    nf.convert(tmp_path / "ours.safetensors", out, "fp8", overwrite=True)
    with pytest.raises(NotImplementedError, match="can be read but not written"):
        nf.convert(out, tmp_path / "no.safetensors", "comfyui", from_="fp8")


def test_convert_takes_paths_that_begin_with_a_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nf.save("-in.safetensors", {"a.weight": nf.quantize(X[:32, :64], "mxfp8_e4m3")})
    nf.convert("-in.safetensors", "--out.safetensors", "fp8")
    assert set(nf.load("--out.safetensors")) == {"a.weight", "a.weight_scale_inv"}
    with pytest.raises(ValueError, match=r"^read: --help, does not exist$"):
        nf.convert("--help", "x.safetensors", "fp8")


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        (
            "kill -KILL $$", OSError,
            r"^convert: the command line must end with a JSON object, got exit status -9$",
        ),
        (
            "exit 127", OSError,
            r"^convert: the command line must end with a JSON object, got exit status 127$",
        ),
        ('echo \'{"error": {"kind": "OutOfMemory", "message": "m"}}\'; exit 4', MemoryError, "^m$"),
        ('echo \'{"error": {"kind": "Internal", "message": "m"}}\'; exit 4', RuntimeError, "^m$"),
    ],
)  # fmt: skip
def test_convert_says_how_the_command_line_ended(
    script: str,
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = tmp_path / "narrowfloat"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr("narrowfloat.checkpoint.PROGRAM", program)
    with pytest.raises(error, match=message):
        nf.convert("in.safetensors", "out.safetensors", "fp8")


def test_lazy_tensors_say_how_many_they_are(tmp_path: Path) -> None:
    nf.save(tmp_path / "f.safetensors", {"a": np.ones(2, np.float32)})
    assert repr(nf.load(tmp_path / "f.safetensors")) == "LazyTensors(1 tensors)"
