# SPDX-License-Identifier: Apache-2.0
"""Makes a small model for each kind of weight in other projects' conventions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from foreign_model import (
    BF16,
    E4M3,
    E8M0,
    Tensors,
    codes,
    method,
    packed,
    power_values,
    powers,
    scales,
    spread,
)

SHAPE = (200, 320)


class Case(NamedTuple):
    """The tensors of a file, its config.json, and the values that they stand for."""

    tensors: Tensors
    config: dict | None
    values: Tensors


CASES: dict[str, Callable[[], Case]] = {}


def case(name: str) -> Case:
    return CASES[name]()


def named(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        CASES[name] = make
        return make

    return register


def fp8() -> tuple[np.ndarray, np.ndarray]:
    """Returns E4M3 codes, and their values without scales."""
    w = codes(SHAPE)
    return w, w.astype(np.float32)


def tiles(scale: np.ndarray) -> np.ndarray:
    return fp8()[1] * spread(scale, 128, 128, SHAPE)


@named("deepseek")
def deepseek() -> Case:
    w, s = codes(SHAPE), scales((2, 3))
    tensors = {"a.weight": w, "a.weight_scale_inv": s}
    return Case(tensors, method("fp8"), {"a.weight": tiles(s)})


@named("deepseek ue8m0")
def deepseek_ue8m0() -> Case:
    w, p = codes(SHAPE), powers((2, 3))
    tensors = {"a.weight": w, "a.weight_scale_inv": p.view(E8M0)}
    return Case(tensors, method("fp8"), {"a.weight": tiles(power_values(p))})


@named("deepseek-v4")
def deepseek_v4() -> Case:
    (w, values), p = packed(SHAPE), powers((200, 10))
    tensors = {"a.weight": w.view(np.int8), "a.scale": p.view(E8M0)}
    values = values * spread(power_values(p), 1, 32, SHAPE)
    return Case(tensors, method("fp8", expert_dtype="fp4"), {"a.weight": values})


@named("deepseek experts")
def deepseek_experts() -> Case:
    w, s = codes(SHAPE), scales((2, 3))
    tensors = {
        "e.experts.down_proj": np.stack([w, w]),
        "e.experts.down_proj_scale_inv": np.stack([s, 2 * s]),
    }
    values = np.stack([tiles(s), 2 * tiles(s)])
    return Case(tensors, method("fp8"), {"e.experts.down_proj": values})


@named("deepseek 64")
def deepseek_64() -> Case:
    (w, wide), s = fp8(), scales((4, 5))
    tensors = {"a.weight": w, "a.weight_scale_inv": s}
    config = method("fp8", weight_block_size=[64, 64])
    return Case(tensors, config, {"a.weight": wide * spread(s, 64, 64, SHAPE)})


@named("tensor")
def one_scale() -> Case:
    w, wide = fp8()
    tensors = {"a.weight": w, "a.weight_scale_inv": np.float32(0.3).reshape(())}
    return Case(tensors, method("fp8"), {"a.weight": wide * np.float32(0.3)})


@named("mxfp8")
def mxfp8() -> Case:
    (w, wide), p = fp8(), powers((200, 10))
    tensors = {"a.weight": w, "a.weight_scale_inv": p}
    config = method("mxfp8", weight_block_size=[1, 32])
    return Case(tensors, config, {"a.weight": wide * spread(power_values(p), 1, 32, SHAPE)})


@named("rows")
def rows() -> Case:
    (w, wide), row = fp8(), scales((200, 1))
    tensors = {"a.weight": w, "a.weight_scale": row}
    return Case(tensors, method("fbgemm_fp8"), {"a.weight": wide * row})


@named("columns of experts")
def columns_of_experts() -> Case:
    """Makes down_proj square, so that only the convention decides whether scales are per column."""
    up, down = codes((2, 64, 96), 1), codes((2, 64, 64), 2)
    per_up, per_down = scales((2, 1, 96)), scales((2, 64, 1), 1)
    tensors = {"experts.gate_up_proj": up, "experts.gate_up_proj_scale": per_up}
    tensors |= {"experts.down_proj": down, "experts.down_proj_scale": per_down}
    values = {
        "experts.gate_up_proj": up.astype(np.float32) * per_up,
        "experts.down_proj": down.astype(np.float32) * per_down.swapaxes(1, 2),
    }
    return Case(tensors, method("fbgemm_fp8"), values)


@named("ct bf16 scale")
def bfloat16_scales() -> Case:
    (w, wide), row = fp8(), scales((200, 1)).astype(BF16)
    tensors = {"a.weight": w, "a.weight_scale": row, "a.input_scale": np.ones(1, np.float32)}
    return Case(tensors, method("compressed-tensors"), {"a.weight": wide * row.astype(np.float32)})


@named("ct mxfp4")
def mxfp4() -> Case:
    (w, values), p = packed(SHAPE), powers((200, 10))
    tensors = {"a.weight_packed": w, "a.weight_scale": p}
    values = values * spread(power_values(p), 1, 32, SHAPE)
    return Case(tensors, method("compressed-tensors"), {"a.weight": values})


@named("nv ct")
def nvfp4_compressed_tensors() -> Case:
    (w, values), s = packed(SHAPE), scales((200, 20)).astype(E4M3)
    tensors = {"a.weight_packed": w, "a.weight_scale": s}
    tensors["a.weight_global_scale"] = np.full(1, 700, np.float32)
    values = values * spread(s.astype(np.float32) / np.float32(700), 1, 16, SHAPE)
    return Case(tensors, method("compressed-tensors"), {"a.weight": values})


@named("nv modelopt")
def nvfp4_modelopt() -> Case:
    (w, values), s = packed(SHAPE), scales((200, 20)).astype(E4M3)
    tensors = {"a.weight": w, "a.weight_scale": s}
    tensors["a.weight_scale_2"] = np.float32(0.007).reshape(())
    tensors["a.input_scale"] = np.float32(1).reshape(())
    values = values * spread(s.astype(np.float32) * np.float32(0.007), 1, 16, SHAPE)
    return Case(tensors, method("modelopt"), {"a.weight": values})


@named("modelopt four dimensions")
def four_dimensions() -> Case:
    w, s = codes(SHAPE), scales((2, 3))
    tensors = {"a.weight": w, "a.weight_scale": s.reshape(2, 1, 3, 1)}
    return Case(tensors, method("modelopt"), {"a.weight": tiles(s)})


@named("gpt-oss")
def gpt_oss() -> Case:
    (w, values), p = packed((3, 64, 96), 1), powers((3, 64, 3), 1)
    tensors = {
        "experts.gate_up_proj_blocks": w.reshape(3, 64, 3, 16),
        "experts.gate_up_proj_scales": p,
    }
    values = values * np.repeat(power_values(p), 32, -1)
    transposed = np.ascontiguousarray(values.swapaxes(1, 2))
    return Case(tensors, method("mxfp4"), {"experts.gate_up_proj": transposed})


@named("comfyui")
def comfyui() -> Case:
    w, wide = fp8()
    tensors = {"scaled_fp8": np.zeros(2, E4M3), "a.weight": w}
    tensors["a.scale_weight"] = np.float32(0.3).reshape(())
    return Case(tensors, None, {"a.weight": wide * np.float32(0.3)})
