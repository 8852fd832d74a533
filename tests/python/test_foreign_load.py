# SPDX-License-Identifier: Apache-2.0
"""Tests load(from_=) and save(convention=): weights in other projects' conventions."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cli import read_file, run, write_file

import narrowfloat as nf

X = np.random.default_rng(7).standard_normal((200, 320)).astype(np.float32)
NORM = np.linspace(0, 1, 320, dtype=np.float32)
HOLDERS = [
    (scheme, convention)
    for scheme, conventions in {
        "fp8_e4m3": ("fp8", "compressed-tensors", "modelopt"),
        "fp8_block128x128_e4m3": ("fp8", "compressed-tensors", "modelopt"),
        "mxfp8_e4m3": ("fp8", "mxfp8", "compressed-tensors", "modelopt"),
        "mxfp4": ("deepseek-v4", "compressed-tensors"),
        "nvfp4": ("compressed-tensors", "modelopt"),
    }.items()
    for convention in conventions
]


def saved(path: Path, scheme: str, convention: str) -> nf.QuantizedTensor:
    tensor = nf.quantize(X, scheme)
    nf.save(path, {"experts.0.weight": tensor, "norm.weight": NORM}, convention=convention)
    return tensor


@pytest.mark.parametrize(("scheme", "convention"), HOLDERS)
def test_what_save_writes_comes_back(scheme: str, convention: str, tmp_path: Path) -> None:
    before = saved(tmp_path / "f.safetensors", scheme, convention)
    loaded = nf.load(tmp_path / "f.safetensors", from_=convention)
    assert set(loaded) == {"experts.0.weight", "norm.weight"}
    assert np.array_equal(loaded["norm.weight"], NORM)
    after = loaded["experts.0.weight"]
    assert isinstance(after, nf.QuantizedTensor)
    assert (after.spec, after.shape) == (before.spec, before.shape)
    for role in ("rowwise_data", "rowwise_scale_inv"):
        assert after.buffers[role].tobytes() == before.buffers[role].tobytes()
    if scheme == "nvfp4":
        # Two amaxes an ulp apart (2^-23) may have one scale. compressed-tensors stores the
        # reciprocal, which is rounded by 2^-24, and so is the reciprocal of it.
        ratio = after.buffers["amax_rowwise"] / before.buffers["amax_rowwise"].astype(np.float64)
        assert abs(ratio.item() - 1) <= 2.0**-22


@pytest.mark.parametrize(("scheme", "convention"), HOLDERS)
def test_the_command_line_writes_the_same_bytes(
    scheme: str, convention: str, tmp_path: Path
) -> None:
    write_file(tmp_path / "float.safetensors", {"experts.0.weight": X, "norm.weight": NORM})
    out = tmp_path / "out.safetensors"
    run("quantize", tmp_path / "float.safetensors", out, "--scheme", scheme,
        "--convention", convention)  # fmt: skip
    saved(tmp_path / "f.safetensors", scheme, convention)
    assert (tmp_path / "f.safetensors").read_bytes() == out.read_bytes()


@pytest.mark.parametrize(("scheme", "convention"), HOLDERS)
def test_dtype_gives_the_values_of_dequantize(scheme: str, convention: str, tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    saved(path, scheme, convention)
    for dtype, name in ((np.float32, "f32"), (ml_dtypes.bfloat16, "bf16")):
        run("dequantize", path, tmp_path / name, "--from", convention, "--dtype", name)
        values = nf.load(path, from_=convention, dtype=dtype)["experts.0.weight"]
        expected = read_file(tmp_path / name)[0]["experts.0.weight"]
        assert values.dtype == dtype and values.tobytes() == expected.tobytes()


def test_dtype_gives_values_of_our_own_convention(tmp_path: Path) -> None:
    tensor = nf.quantize(X, "mxfp8_e4m3")
    nf.save(tmp_path / "f.safetensors", {"w": tensor, "n": NORM})
    loaded = nf.load(tmp_path / "f.safetensors", dtype="float32")
    assert np.array_equal(loaded["w"], nf.dequantize(tensor)) and loaded["n"].dtype == np.float32


def test_without_from_entries_come_as_they_are(tmp_path: Path) -> None:
    saved(tmp_path / "f.safetensors", "mxfp8_e4m3", "compressed-tensors")
    loaded = nf.load(tmp_path / "f.safetensors")
    assert set(loaded) == {"experts.0.weight", "experts.0.weight_scale", "norm.weight"}
    assert loaded["experts.0.weight"].dtype == ml_dtypes.float8_e4m3fn


def test_auto_takes_what_the_files_tell(tmp_path: Path) -> None:
    saved(tmp_path / "fp8.safetensors", "fp8_block128x128_e4m3", "fp8")
    nf.save(tmp_path / "own.safetensors", {"w": nf.quantize(X, "nvfp4")})
    nf.save(tmp_path / "plain.safetensors", {"w": X})
    kinds = {
        name: type(next(iter(nf.load(tmp_path / f"{name}.safetensors", from_="auto").values())))
        for name in ("fp8", "own", "plain")
    }
    assert kinds == {
        "fp8": nf.QuantizedTensor, "own": nf.QuantizedTensor, "plain": np.ndarray,
    }  # fmt: skip
    write_file(tmp_path / "bare.safetensors", {"w.weight": X.astype(ml_dtypes.float8_e4m3fn)})
    with pytest.warns(UserWarning, match="^load: 1 tensor of FP8 without scales: their codes are"):
        bare = nf.load(tmp_path / "bare.safetensors", from_="auto")["w.weight"]
    np.testing.assert_array_equal(
        nf.dequantize(bare, dtype=np.float32),
        X.astype(ml_dtypes.float8_e4m3fn).astype(np.float32),
    )


def test_powers_of_two_of_tiles_become_floats(tmp_path: Path) -> None:
    scales = np.array([[120, 130, 125], [127, 126, 128]], np.uint8)
    codes = nf.quantize(X, "fp8_block128x128_e4m3").buffers["rowwise_data"]
    tensors = {
        "a.weight": codes.view(ml_dtypes.float8_e4m3fn),
        "a.weight_scale_inv": scales.view(ml_dtypes.float8_e8m0fnu),
    }
    write_file(tmp_path / "f.safetensors", tensors)
    loaded = nf.load(tmp_path / "f.safetensors", from_="fp8")["a.weight"]
    assert loaded.spec == "fp8_block128x128_e4m3"
    found = loaded.buffers["rowwise_scale_inv"][:, :3]
    assert np.array_equal(found, np.exp2(scales.astype(np.float32) - 127))


def test_rows_with_a_scale_have_values_but_no_scheme(tmp_path: Path) -> None:
    scale = np.linspace(0.5, 2, 200, dtype=np.float32).reshape(200, 1)
    codes = X.astype(ml_dtypes.float8_e4m3fn)
    write_file(tmp_path / "f.safetensors", {"a.weight": codes, "a.weight_scale": scale})
    with pytest.raises(NotImplementedError, match=r"'a.weight' \(e4m3 row F32\) has no scheme"):
        nf.load(tmp_path / "f.safetensors", from_="compressed-tensors")["a.weight"]
    loaded = nf.load(tmp_path / "f.safetensors", from_="compressed-tensors", dtype="float32")
    assert np.array_equal(loaded["a.weight"], codes.astype(np.float32) * scale)


@pytest.mark.parametrize("from_", [None, "auto"])
def test_values_are_of_a_wide_float_type(tmp_path: Path, from_: str | None) -> None:
    nf.save(tmp_path / "f.safetensors", {"a.weight": np.ones((4, 32), np.float32)})
    message = r"^load: dtype must be float32, float16 or bfloat16, got 'int8'$"
    with pytest.raises(TypeError, match=message):
        nf.load(tmp_path / "f.safetensors", from_=from_, dtype="int8")


@pytest.mark.parametrize(
    ("tensors", "convention", "error", "message"),
    [
        ({"a.weight": "mxfp8_e4m3"}, "nobodys", ValueError,
         "unknown convention 'nobodys'; there are: narrowfloat, fp8, "),
        ({"a.weight": "mxfp8_e4m3"}, "comfyui", NotImplementedError, "can be read but not written"),
        ({"a.weight": "nvfp4"}, "fp8", NotImplementedError, "has no form in 'fp8'"),
        ({"a": "mxfp8_e4m3"}, "fp8", NotImplementedError, "must end in '.weight'"),
        (
            {"a.weight": "mxfp8_e4m3", "b.weight": "fp8_block128x128_e4m3"}, "fp8",
            NotImplementedError,
            (r"^save: 'b\.weight' would be block and others mxfp8"
            r", a model must have "
        r"one format$"),
        ),
    ],
)  # fmt: skip
def test_what_a_convention_cannot_hold_is_refused_before_writing(
    tensors: dict[str, str], convention: str, error: type, message: str, tmp_path: Path
) -> None:
    quantized = {name: nf.quantize(X, scheme) for name, scheme in tensors.items()}
    with pytest.raises(error, match=message):
        nf.save(tmp_path / "f.safetensors", quantized, convention=convention)
    assert not list(tmp_path.iterdir())


def test_a_missing_scale_is_an_error(tmp_path: Path) -> None:
    write_file(tmp_path / "f.safetensors", {"a.weight": X.astype(ml_dtypes.float8_e4m3fn)})
    with pytest.raises(
        ValueError,
        match=(
            r"^.*: 'a\.weight' holds codes and needs its scale 'a\.weight_scale_inv', "
            r"which is missing$"
        ),
    ):
        nf.load(tmp_path / "f.safetensors", from_="fp8")
    with pytest.raises(
        ValueError, match=r"^load: unknown convention 'nobodys'; there are: narrowfl"
    ):
        nf.load(tmp_path / "f.safetensors", from_="nobodys")


def in_several_files(folder: Path, tensors: dict[str, np.ndarray], metadata: dict) -> Path:
    """Writes one file per tensor, each with all metadata, like programs without our buffers."""
    folder.mkdir()
    weight_map = {}
    for i, (name, value) in enumerate(tensors.items()):
        weight_map[name] = f"model-{i}.safetensors"
        write_file(folder / weight_map[name], {name: value}, metadata)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_buffers_in_several_files_with_the_same_metadata(tmp_path: Path) -> None:
    tensor = nf.quantize(X, "nvfp4")
    nf.save(tmp_path / "whole.safetensors", {"w": tensor, "n": NORM})
    tensors, metadata = read_file(tmp_path / "whole.safetensors")
    folder = in_several_files(tmp_path / "cut", tensors, metadata)
    loaded = nf.load(folder)
    assert set(loaded) == {"w", "n"}
    for role, buffer in tensor.buffers.items():
        assert loaded["w"].buffers[role].tobytes() == buffer.tobytes()
    assert run("diff", tmp_path / "whole.safetensors", folder).returncode == 0
    run("dequantize", folder, tmp_path / "values", "--dtype", "f32")
    assert np.array_equal(nf.load(tmp_path / "values")["w"], nf.dequantize(tensor))
    run("convert", folder, tmp_path / "no", "--to", "fp8", code=3)


def test_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    nf.save(tmp_path / "whole.safetensors", {"w": nf.quantize(X, "mxfp8_e4m3")})
    tensors, metadata = read_file(tmp_path / "whole.safetensors")
    folder = in_several_files(tmp_path / "cut", tensors, metadata)
    first = next(iter(tensors))
    changed = {"narrowfloat.w": metadata["narrowfloat.w"].replace("float32", "float16")}
    write_file(folder / "model-0.safetensors", {first: tensors[first]}, metadata | changed)
    with pytest.raises(ValueError, match=r"^.*: must be as in the other files, got .*$"):
        nf.load(folder)
    write_file(folder / "model-0.safetensors", tensors, metadata)  # all buffers a second time
    with pytest.raises(ValueError, match=r"^.*: '.*' must be in one file, another has it too$"):
        nf.load(folder)
