# SPDX-License-Identifier: Apache-2.0
"""Writes and reads folders of models in other projects' conventions; makes their tensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from cli import TYPES, read_file, write_file

E4M3, E8M0, BF16 = TYPES["F8_E4M3"], TYPES["F8_E8M0"], TYPES["BF16"]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([E2M1, -E2M1])
Tensors = dict[str, np.ndarray]


def write_model(folder: Path, shards: list[Tensors], config: dict | None = None) -> Path:
    """Writes a folder of shards with an index, as on the Hugging Face hub; returns the folder."""
    folder.mkdir()
    weight_map = {}
    for i, tensors in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        write_file(folder / name, tensors, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def read_model(folder: Path) -> Tensors:
    tensors: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= read_file(path)[0]
    return tensors


def codes(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Returns random E4M3 codes other than NaN, whose low 7 bits are all 1."""
    bits = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return np.where(bits & 0x7F == 0x7F, 0, bits).astype(np.uint8).view(E4M3)


def packed(shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns random E2M1 codes, two per byte with the first in the low half, and their values."""
    halves = np.random.default_rng(seed).integers(0, 16, shape, np.uint8)
    return halves[..., ::2] | halves[..., 1::2] << 4, E2M1[halves]


def scales(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(-5, 1, shape).astype(np.float32)


def powers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(100, 140, shape, np.uint8)


def power_values(codes_: np.ndarray) -> np.ndarray:
    return np.exp2(codes_.astype(np.float64) - 127).astype(np.float32)


def spread(scale: np.ndarray, rows: int, cols: int, shape: tuple[int, ...]) -> np.ndarray:
    wide = np.repeat(np.repeat(scale, rows, -2), cols, -1)
    return wide[..., : shape[-2], : shape[-1]]


def method(name: str, **more: object) -> dict:
    return {"dtype": "float32", "quantization_config": {"quant_method": name, **more}}


def swizzle(scales: np.ndarray) -> np.ndarray:
    """Returns the scales padded and swizzled, as a matrix of the padded shape."""
    lines, blocks = (
        -(-size // tile) * tile for size, tile in zip(scales.shape, (128, 4), strict=True)
    )
    padded = np.zeros((lines, blocks), np.uint8)
    padded[: scales.shape[0], : scales.shape[1]] = scales.view(np.uint8)
    tiles = padded.reshape(lines // 128, 4, 32, blocks // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles).reshape(lines, blocks).view(scales.dtype)
