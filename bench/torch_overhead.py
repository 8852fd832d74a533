# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of a call from PyTorch on a small tensor, nearly without its elements.

usage: python bench/torch_overhead.py [--side N] [--repetitions N] [--json FILE]

Every quantizer with given and with new buffers, next to torch.add and a cast to FP8. They run in
turns of many calls, and the best turn counts.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from overhead import measure

from narrowfloat import pytorch as nfp


def make_quantizers() -> dict[str, nfp.Quantizer]:
    """Returns quantizers by printed name; rowwise, except "both" and the hybrid one."""
    e4m3 = nfp.DType.kFloat8E4M3
    one, zero = torch.ones(1), torch.zeros(1)
    directions = {"rowwise": True, "columnwise": False}
    hybrid = nfp.HybridQuantizer(
        rowwise_quantizer=nfp.MXFP8Quantizer(e4m3),
        columnwise_quantizer=nfp.MXFP8Quantizer(nfp.DType.kFloat8E5M2),
    )
    return {
        "Float8Quantizer": nfp.Float8Quantizer(one, zero, e4m3, **directions),
        "Float8Quantizer, both": nfp.Float8Quantizer(one, zero, e4m3),
        "Float8CurrentScalingQuantizer": nfp.Float8CurrentScalingQuantizer(e4m3, **directions),
        "Float8CurrentScalingQuantizer, both": nfp.Float8CurrentScalingQuantizer(e4m3),
        "MXFP8Quantizer": nfp.MXFP8Quantizer(e4m3, **directions),
        "MXFP8Quantizer, both": nfp.MXFP8Quantizer(e4m3),
        "Float8BlockQuantizer": nfp.Float8BlockQuantizer(e4m3, **directions),
        "Float8BlockQuantizer, both": nfp.Float8BlockQuantizer(e4m3, rowwise=True, columnwise=True),
        "NVFP4Quantizer": nfp.NVFP4Quantizer(**directions),
        "NVFP4Quantizer, both": nfp.NVFP4Quantizer(),
        "IdentityQuantizer": nfp.IdentityQuantizer(**directions),
        "IdentityQuantizer, both": nfp.IdentityQuantizer(),
        "HybridQuantizer": hybrid,
    }


def make_calls(side: int) -> dict[str, Callable[[], object]]:
    """Returns the calls to measure, by name."""
    x = torch.randn(side, side).to(torch.bfloat16)
    calls: dict[str, Callable[[], object]] = {
        "torch.add": lambda: torch.add(x, x),
        "to(torch.float8_e4m3fn)": lambda: x.to(torch.float8_e4m3fn),
    }
    for name, quantizer in make_quantizers().items():
        out = quantizer(x)
        calls[f"{name}, out="] = lambda q=quantizer, out=out: q.quantize(x, out=out)
        calls[f"{name}, new"] = lambda q=quantizer: q.quantize(x)
        calls[f"{name}, dequantize"] = lambda out=out: out.dequantize()
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=25)
    parser.add_argument("--json", type=Path, help="writes everything measured")
    options = parser.parse_args()

    torch.set_num_threads(1)
    with torch.no_grad():
        microseconds = measure(make_calls(options.side), options.repetitions)
    print(
        f"microseconds per call, {options.side} x {options.side} bfloat16, torch", torch.__version__
    )
    for name, value in microseconds.items():
        print(f"{name:48} {value:7.2f}")
    if options.json:
        options.json.write_text(json.dumps(microseconds, indent=2) + "\n")


if __name__ == "__main__":
    main()
