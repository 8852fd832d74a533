# SPDX-License-Identifier: Apache-2.0
"""Defines writes to a quantized tensor and to parts of it, by different operators."""

from collections.abc import Callable

import torch
from families import ALL, E4M3, sample

from narrowfloat import pytorch as nfp

SHAPE = (256, 256)
KINDS: dict[str, Callable[[], nfp.Quantizer]] = {
    name: ALL[name]
    for name in ("float8_delayed", "float8_current", "mxfp8", "blockwise_2d", "nvfp4")
}
KINDS["hybrid_float8_mxfp8"] = lambda: nfp.HybridQuantizer(
    rowwise_quantizer=nfp.Float8CurrentScalingQuantizer(E4M3),
    columnwise_quantizer=nfp.MXFP8Quantizer(E4M3),
)
KINDS["hybrid_nvfp4_mxfp8"] = ALL["hybrid_nvfp4_mxfp8"]


def set_part(q: nfp.QuantizedTensor, x: torch.Tensor) -> None:
    q[:128] = 0


def set_row(q: nfp.QuantizedTensor, x: torch.Tensor) -> None:
    q[3] = 0.0


def set_row_to_values(q: nfp.QuantizedTensor, x: torch.Tensor) -> None:
    q[5] = x[7]


WHOLE: dict[str, Callable[[nfp.QuantizedTensor, torch.Tensor], object]] = {
    "mul_": lambda q, x: q.mul_(0.5),
    "copy_": lambda q, x: q.copy_(x * 0.5),
    "fill_": lambda q, x: q.fill_(0.25),
    "addcmul_": lambda q, x: q.addcmul_(x, x),
    "out": lambda q, x: torch.add(x, x, out=q),
    "foreach": lambda q, x: torch._foreach_mul_([q], 0.5),
}
PARTS: dict[str, Callable[[nfp.QuantizedTensor, torch.Tensor], object]] = {
    "set_part": set_part,
    "set_row": set_row,
    "set_row_to_values": set_row_to_values,
    "mul_part": lambda q, x: q[:128].mul_(0.5),
    "copy_part": lambda q, x: q[:128].copy_(x[:128] * 0.5),
    "copy_codes": lambda q, x: q[:128].copy_(q[128:]),
    "zero_part": lambda q, x: q[:128].zero_(),
    "foreach_parts": lambda q, x: torch._foreach_mul_([q[:128], q[128:]], 0.5),
    "flag": lambda q, x: q[:128].quantize_(
        x[:128] * 0.5, noop_flag=torch.zeros(1, device=x.device)
    ),
}
WRITES = WHOLE | PARTS


def values(device: str = "cpu") -> torch.Tensor:
    return sample(*SHAPE, dtype=torch.bfloat16).to(device)
