# SPDX-License-Identifier: Apache-2.0
"""What no other convention holds: nothing to convert, empty tensors, integers, lost scales."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli import run, write_file
from foreign_model import method, write_model

TARGETS = ["fp8", "modelopt", "compressed-tensors", "deepseek-v4", "narrowfloat"]
FROZEN = method("compressed-tensors", quantization_status="frozen")


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("kind", ["frozen", "file"])
def test_a_model_without_quantized_weights_is_refused(tmp_path: Path, kind: str, to: str) -> None:
    tensors = {"a.weight": np.ones((64, 64), np.float32)}
    if kind == "frozen":
        source, out = write_model(tmp_path / "in", [tensors], FROZEN), tmp_path / "out"
        more: tuple[str, ...] = ()
    else:
        source = write_file(tmp_path / "in.safetensors", tensors)
        out, more = tmp_path / "out.safetensors", ("--from", "modelopt")
    done = run("convert", source, out, "--to", to, *more, code=2)
    assert done.stderr == (
        f"narrowfloat: convert: must have at least one tensor to work on, {source} has none\n"
    )
    assert not out.exists()
