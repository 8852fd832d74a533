# SPDX-License-Identifier: Apache-2.0
"""Tests te_inspect_ffi: its files, their names, and that the array does not change."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import narrowfloat.jax as nfj
import numpy as np
import pytest

assert nfj.registrations()  # the targets are registered
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int32]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def inspect(x: jax.Array, name: str, statistics: tuple[float, ...] = (1, 2, 3, 4)) -> jax.Array:
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call("te_inspect_ffi", like, input_output_aliases={0: 0})
    return call(x, *map(np.float32, statistics), name=name)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_the_bytes_are_written_and_returned(dtype: object, folder: Path) -> None:
    x = jnp.arange(6).reshape(2, 3).astype(dtype)
    made = jax.jit(lambda x: inspect(x + 1, "my_array") + 1)(x)
    want = np.asarray(x + 1)
    assert (folder / "my_tensor_gpu0_my_array.bin").read_bytes() == want.tobytes()
    assert np.asarray(made).tobytes() == np.asarray(x + 1 + 1).tobytes()


def test_what_is_known_of_the_array(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    jax.block_until_ready(inspect(jnp.zeros((2, 1, 5)), "a", (-1, 1e-9, 1 / 3, 123456789)))
    line = (
        "[gpu0 a]: written to my_tensor_gpu0_a.bin (shape: [2, 1, 5], dtype: 11, min: -1.000000, "
        "max: 0.000000, mean: 0.333333, std: 123456792.000000)\n"
    )
    assert capfd.readouterr().out == line
    text = (folder / "my_tensor_gpu0_a_meta.json").read_text()
    assert text == (
        '{"name": "a", "shape": [2, 1, 5], "dtype": 11, '
        '"min": -1, "max": 1e-09, "mean": 0.333333, "std": 1.23457e+08}'
    )


@pytest.mark.parametrize(
    ("name", "part"),
    [("layer 1/w", "layer_1_w"), ("../up", ".._up"), ('say "\\\n"', "say_____"), ("", "anon")],
)
def test_names_that_files_should_not_have(name: str, part: str, folder: Path) -> None:
    jax.block_until_ready(inspect(jnp.float32(2), name))
    assert sorted(path.name for path in folder.iterdir()) == [
        f"my_tensor_gpu0_{part}.bin",
        f"my_tensor_gpu0_{part}_meta.json",
    ]
    meta = json.loads((folder / f"my_tensor_gpu0_{part}_meta.json").read_text())
    assert (meta["name"], meta["shape"]) == (name, [])


def test_nan_and_infinities_can_be_read_back(folder: Path) -> None:
    jax.block_until_ready(inspect(jnp.float32(2), "a", (-np.inf, np.inf, np.nan, 0)))
    meta = json.loads((folder / "my_tensor_gpu0_a_meta.json").read_text())
    assert [meta[key] for key in ("min", "max")] == [-np.inf, np.inf] and np.isnan(meta["mean"])


def test_each_device_writes_its_own_file(folder: Path) -> None:
    for device in jax.devices()[:3]:
        x = jax.device_put(jnp.full((2,), device.id, jnp.float32), device)
        jax.block_until_ready(inspect(x, "a"))
    for index in range(3):
        written = np.frombuffer((folder / f"my_tensor_gpu{index}_a.bin").read_bytes(), np.float32)
        assert written.tolist() == [index] * 2


def test_a_file_that_cannot_be_written(folder: Path) -> None:
    (folder / "my_tensor_gpu0_a.bin").mkdir()
    message = "write: my_tensor_gpu0_a.bin, must be a regular file or a new one"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(inspect(jnp.ones(2), "a"))


def test_statistics_of_another_type_are_refused(folder: Path) -> None:
    like = jax.ShapeDtypeStruct((2,), jnp.float32)
    call = jax.ffi.ffi_call("te_inspect_ffi", like)
    one = np.float32(1)
    with pytest.raises(jax.errors.JaxRuntimeError, match="inspect: max must be float32, got int32"):
        jax.block_until_ready(call(jnp.ones(2), one, np.int32(1), one, one, name="a"))
    assert not list(folder.iterdir())
