# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of a conversion per tensor and per byte, next to `cp` and PyTorch.

Makes two models of random bytes with the tensors of DeepSeek-V4 (block FP8 with power-of-two
scales, experts in FP4): one with 72,317 small tensors, one with the same bytes in few large
tensors. The difference of their times is the cost per tensor.

Usage: .venv/bin/python bench/checkpoints.py [--tensors N] [--folder F] [--repetitions R]
"""

import argparse
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

TENSORS = 72_317  # in DeepSeek-V4's checkpoint
SHARDS = 8
SIDE = 128  # rows and columns of a small matrix: one tile of block FP8
PER_LARGE = 256  # small matrices per large one, by bytes
ATTENTION = 1 / 33  # share of the matrices that are FP8, as in the model


def program() -> str:
    return os.environ.get("NF_CLI") or str(Path(sys.executable).with_name("narrowfloat"))


def tensors_of(count: int, rows: int) -> Iterator[tuple[str, str, list[int]]]:
    """Yields names, types and shapes: matrices and scales, one vector per layer."""
    made = layer = 0
    while made < count:
        yield f"layers.{layer}.attn_norm.weight", "BF16", [SIDE]
        made += 1
        for i in range(33):
            if made + 2 > count:
                break
            if i < 33 * ATTENTION:
                stem = f"layers.{layer}.attn.wq_{i}"
                yield f"{stem}.weight", "F8_E4M3", [rows, SIDE]
                yield f"{stem}.scale", "F8_E8M0", [rows // SIDE, 1]
            else:
                stem = f"layers.{layer}.ffn.experts.{i}.w1"
                yield f"{stem}.weight", "I8", [rows, SIDE // 2]
                yield f"{stem}.scale", "F8_E8M0", [rows, SIDE // 32]
            made += 2
        layer += 1


def write_model(folder: Path, count: int, rows: int) -> Path:
    """Writes a sharded model with an index. Scales span few exponents, so that FP4 fits FP8."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    listed = list(tensors_of(count, rows))
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        mine = sorted(listed[len(listed) * shard // SHARDS : len(listed) * (shard + 1) // SHARDS])
        header, pieces, at = {}, [], 0
        for tensor, dtype, shape in mine:
            size = int(np.prod(shape)) * (2 if dtype == "BF16" else 1)
            low, high = (118, 126) if dtype == "F8_E8M0" else (0, 120)
            pieces.append(random.integers(low, high, size, np.uint8).tobytes())
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        weight_map |= dict.fromkeys(header, name)
        text = json.dumps(header).encode()
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(pieces))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [SIDE, SIDE]}
    config["expert_dtype"] = "fp4"
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


def measure(command: list[str], out: Path, repetitions: int) -> dict[str, float]:
    """Returns the minimum wall and CPU seconds of a command that writes `out`."""
    wall, cpu = [], []
    for _ in range(repetitions):
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    shutil.rmtree(out, ignore_errors=True)
    return {"wall": min(wall), "cpu": min(cpu)}


def torch_formula(count: int, rows: int) -> float:
    """Returns the seconds of PyTorch's formula for `count` experts in memory, without files.

    It decodes FP4 by a table, multiplies by the scale, and makes FP8 with power-of-two tile scales.
    """
    import torch

    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat([table, -table]).to(torch.bfloat16)
    codes = torch.randint(0, 256, (rows, SIDE // 2), dtype=torch.uint8)
    scales = torch.randint(118, 126, (rows, SIDE // 32), dtype=torch.uint8)
    start = time.perf_counter()
    for _ in range(count):
        low, high = table[(codes & 15).long()], table[(codes >> 4).long()]
        values = torch.stack([low, high], -1).view(rows, SIDE)
        values = values * scales.view(torch.float8_e8m0fnu).bfloat16().repeat_interleave(32, 1)
        tiles = values.float().view(rows // SIDE, SIDE, 1, SIDE)
        scale = torch.exp2(torch.ceil(torch.log2(tiles.abs().amax((1, 3), keepdim=True) / 448)))
        (tiles / scale).to(torch.float8_e4m3fn)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=TENSORS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        small = write_model(base / "small", options.tensors, SIDE)
        large = write_model(base / "large", options.tensors // PER_LARGE, SIDE * PER_LARGE)
        size = sum(file.stat().st_size for file in small.iterdir())
        print(f"{options.tensors} tensors, {size / 1e6:.0f} MB; times are the least of", end=" ")
        print(
            f"{options.repetitions}\n\n{'':34}{'wall s':>8}{'MB/s':>8}{'CPU s':>8}{'us/tensor':>11}"
        )
        out = base / "out"
        verbs = {
            "convert --to deepseek-v4": ["convert", "--to", "deepseek-v4"],
            "requantize --scale-format ue8m0": ["requantize", "--scale-format", "ue8m0"],
        }
        for title, (verb, *flags) in verbs.items():
            many, few = (
                measure([program(), verb, str(model), str(out), *flags], out, options.repetitions)
                for model in (small, large)
            )
            each = 1e6 * (many["cpu"] - few["cpu"]) / options.tensors
            for name, figures in (("", many), (", large tensors", few)):
                row = f"{title.split()[0] + name:34}{figures['wall']:8.2f}"
                row += f"{size / 1e6 / figures['wall']:8.0f}{figures['cpu']:8.2f}"
                print(row + (f"{each:11.1f}" if not name else ""))
        for name, model in (("cp -r and sync", small), ("cp -r and sync, large tensors", large)):
            command = ["sh", "-c", f"cp -r {model} {out} && sync {out}/*"]
            copy = measure(command, out, options.repetitions)
            print(f"{name:34}{copy['wall']:8.2f}{size / 1e6 / copy['wall']:8.0f}", end="")
            print(f"{copy['cpu']:8.2f}")
        matrices = options.tensors // 2
        sample = min(matrices, 2000)
        seconds = torch_formula(sample, SIDE) * matrices / sample
        print(f"{'PyTorch formula, FP4 to FP8':34}{seconds:8.2f}{'':16}", end="")
        print(f"{1e6 * seconds / options.tensors:11.1f}   without files, from {sample} matrices")
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
