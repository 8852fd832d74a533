# SPDX-License-Identifier: Apache-2.0
"""Runs the command line, and writes and reads the files of its tests."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

TYPES = {
    "C64": np.dtype(np.complex64),
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
ELEMENTS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
# Constants of linux/prctl.h and linux/capability.h.
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def program() -> str:
    path = os.environ.get("NF_CLI") or str(Path(sys.executable).parent / "narrowfloat")
    assert Path(path).exists(), f"no program at {path}: build it, or say where it is in NF_CLI"
    return path


def run(
    *args: object,
    code: int = 0,
    env: dict[str, str] | None = None,
    preexec_fn: Callable[[], None] | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    command = [program(), *map(str, args)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=env, preexec_fn=preexec_fn
    )
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def run_json(
    *args: object,
    code: int = 0,
    env: dict[str, str] | None = None,
    preexec_fn: Callable[[], None] | None = None,
) -> dict:
    return json.loads(run(*args, "--json", code=code, env=env, preexec_fn=preexec_fn).stdout)


def obey_modes() -> None:
    """Drops root's permission to ignore file modes in the next program; runs as preexec_fn."""
    if os.geteuid() != 0:
        return
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


def write_file(path: Path, tensors: dict[str, np.ndarray], metadata: dict | None = None) -> Path:
    header: dict = {"__metadata__": metadata} if metadata else {}
    data = bytearray()
    for name, array in tensors.items():
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def read_file(path: Path) -> tuple[dict[str, np.ndarray], dict]:
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        flat = np.frombuffer(raw[begin:end], TYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors, metadata


def folder_bytes(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def sample(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    weight = random.standard_normal((96, 160)).astype(np.float32)
    return {
        f"layer.{seed}.dense.weight": weight,
        f"layer.{seed}.half.weight": weight[:34, :40].astype(np.float16),
        f"layer.{seed}.experts.gate_up_proj": weight.reshape(3, 32, 160).astype(TYPES["BF16"]),
        f"layer.{seed}.dense.bias": weight[0],
        f"layer.{seed}.mlp.gate.weight": weight[:8],
        f"layer.{seed}.ids": np.arange(7),
    }


def write_model(folder: Path) -> Path:
    """Writes sample() with metadata to a file in the folder; returns its path."""
    return write_file(folder / "model.safetensors", sample(), {"format": "pt", "a": "b"})


TAKEN = ("dense.weight", "half.weight", "gate_up_proj")


def sharded(folder: Path, shards: int = 3) -> Path:
    (folder / "1_Pooling").mkdir(parents=True)
    weight_map = {}
    for i in range(shards):
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        write_file(folder / name, sample(i), {"format": "pt"})
        weight_map |= dict.fromkeys(sample(i), name)
    index = {"metadata": {"total_size": 1, "total_parameters": 9}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text('{"model_type": "test"}')
    (folder / "1_Pooling" / "config.json").write_text('{"pooling": "mean"}')
    return folder


def schemes() -> list[dict]:
    return run_json("schemes")["schemes"]
