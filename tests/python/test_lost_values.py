# SPDX-License-Identifier: Apache-2.0
"""Tests that no command loses the values of a model without a message."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cli import read_file, run, run_json, write_file

import narrowfloat as nf

TRANSFORMED = "nvfp4:columnwise=1,rht=1,rowwise=0"
MATRIX = np.random.default_rng(5).standard_normal((128, 128)).astype(np.float32)
# Values of one kind per position: in the first piece of 64 bits, across pieces, and in the rest.
PLACES = [(0, 0), (0, 3), (63, 77), (127, 127)]


def quantized(folder: Path, spec: str) -> Path:
    source = write_file(folder / "in.safetensors", {"a.weight": MATRIX})
    out = folder / f"{spec.count('rowwise=0')}.safetensors"
    run("quantize", source, out, "--scheme", spec)
    return out


def test_transformed_values_are_not_those_of_the_model(tmp_path: Path) -> None:
    source = quantized(tmp_path, TRANSFORMED)
    done = run_json("dequantize", source, tmp_path / "out", code=3)
    assert done["error"] == {
        "kind": "Unsupported",
        "message": "dequantize: a tensor must have rowwise codes or no Hadamard transform (rht), "
        f"which is not undone, got {TRANSFORMED} for 'a.weight'",
    }
    assert not (tmp_path / "out").exists()
    page = ("report", tmp_path / "in.safetensors", "-o", tmp_path / "page.html")
    refused = run(*page, "--scheme", TRANSFORMED, code=3).stderr
    assert refused == (
        "narrowfloat: report: --scheme must have rowwise codes or no Hadamard transform (rht), "
        f"which is not undone, got {TRANSFORMED}\n"
    )
    [difference] = run_json("diff", source, tmp_path / "in.safetensors", code=1)["differences"]
    assert difference["what"].endswith(", values are not compared")
    assert difference["values"] is None
    # As nf.dequantize, which leaves the transform in place, nf.load does.
    loaded = nf.load(source, dtype="float32")["a.weight"]
    assert loaded.tobytes() == nf.dequantize(nf.load(source)["a.weight"]).tobytes()
    assert np.abs(loaded - MATRIX).max() > 1


def test_values_beside_transformed_columns_are_those_of_the_model(tmp_path: Path) -> None:
    both = quantized(tmp_path, "nvfp4:columnwise=1,rht=1")
    run("dequantize", both, tmp_path / "out.safetensors", "--dtype", "f32")
    assert np.abs(read_file(tmp_path / "out.safetensors")[0]["a.weight"] - MATRIX).max() < 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        *(
            (
                f"scale={value}",
                f"scale must be positive and finite, and so must its reciprocal, got {shown}",
            )
            for value, shown in [
                ("0", "0"),
                ("nan", "nan"),
                ("inf", "inf"),
                ("-1", "-1"),
                ("1e-45", "1e-45"),
            ]
        ),
        *(
            (f"amax={value}", f"amax must be finite and not negative, got {value}")
            for value in ("nan", "inf", "-1")
        ),
    ],
)
def test_constants_that_make_values_nan_or_infinite_are_refused(
    tmp_path: Path, option: str, message: str
) -> None:
    source = write_file(tmp_path / "in.safetensors", {"a.weight": MATRIX})
    scheme = ("--scheme", f"fp8_e4m3:{option}")
    refused = run("quantize", source, tmp_path / "out", *scheme, code=2).stderr
    assert refused == f"narrowfloat: quantize: {message}\n"
    refused = run("report", source, "-o", tmp_path / "out", *scheme, code=2).stderr
    assert refused == f"narrowfloat: report: {message}\n"
    assert not (tmp_path / "out").exists()


def test_constants_at_the_limits_are_accepted(tmp_path: Path) -> None:
    source = write_file(tmp_path / "in.safetensors", {"a.weight": MATRIX})
    for option in ("scale=3e-39", "scale=3e38", "amax=0", "amax=3e38"):
        run("quantize", source, tmp_path / option, "--scheme", f"fp8_e4m3:{option}")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_tensors_with_nan_and_infinity_are_named(tmp_path: Path, dtype: type) -> None:
    tensors = {"a.weight": MATRIX, "b.weight": MATRIX, "c.weight": MATRIX[:33, :31]}
    tensors = {name: array.astype(dtype) for name, array in tensors.items()}
    tensors["a.weight"][0, 0] = np.finfo(np.float32).tiny  # the other end of the exponents
    scheme = ("--scheme", "fp8_block1x128_e4m3")
    source = write_file(tmp_path / "in.safetensors", tensors)
    assert run_json("quantize", source, tmp_path / "fine", *scheme)["notes"] == []
    for (row, col), value in zip(PLACES, [np.nan, np.inf, -np.inf, -np.nan], strict=True):
        tensors["b.weight"][row, col] = value
    tensors["c.weight"][-1, -1] = np.inf  # in the rest of a tensor of 33 x 31 values
    write_file(source, tensors)
    note = (
        "NaN or infinite values, which the result may not keep, in 2 tensors; the first is "
        "b.weight with 4 values"
    )
    done = run("quantize", source, tmp_path / "text", *scheme)
    assert f"quantize: {note}\n" in done.stderr
    assert run_json("quantize", source, tmp_path / "json", *scheme)["notes"] == [note]
    excluded = ("--exclude", "[bc]*")
    assert run_json("quantize", source, tmp_path / "others", *scheme, *excluded)["notes"] == []


def test_values_that_the_result_s_type_cannot_hold_are_named(tmp_path: Path) -> None:
    codes = np.full((128, 128), 448, np.float32).astype(ml_dtypes.float8_e4m3fn)
    codes[0, :3] = [np.nan, 1, 0]
    scale = np.full((1, 1), 1000, np.float32)
    source = write_file(
        tmp_path / "in.safetensors", {"a.weight": codes, "a.weight_scale_inv": scale}
    )
    note = (
        "finite values that became infinite in the type of the result, in 1 tensor; the first is "
        "a.weight with 16381 values"
    )
    done = run("dequantize", source, tmp_path / "text", "--dtype", "f16")
    assert f"dequantize: {note}\n" in done.stderr
    assert run_json("dequantize", source, tmp_path / "f16", "--dtype", "f16")["notes"] == [note]
    for dtype in ("bf16", "f32"):
        assert run_json("dequantize", source, tmp_path / dtype, "--dtype", dtype)["notes"] == []
