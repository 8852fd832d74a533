# SPDX-License-Identifier: Apache-2.0
"""Runs sessions of the host for tests of layers, and reads their logs and the layers' results."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

debug_api = pytest.importorskip(
    "nvdlfw_inspect.api", reason="nvdlfw-inspect, the host of debug features, is not installed"
)

from narrowfloat.debug import features  # noqa: E402
from narrowfloat.debug.pytorch.debug_state import TEDebugState  # noqa: E402

FEATURES = str(Path(features.__file__).parent)


def section(blocks: dict[str, Any], layers: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns a configuration of one section for `layers`, by default for all layers."""
    layers = {"layer_types": ["all"]} if layers is None else layers
    return {"section": {"enabled": True, "layers": layers, "transformer_engine": blocks}}


@contextlib.contextmanager
def session(config: dict[str, Any] | None, log_dir: Path) -> Iterator[Any]:
    """Runs a session of the host with narrowfloat's features; yields the host's api module."""
    TEDebugState._reset()  # an earlier test may have made a layer without a session
    try:
        debug_api.initialize(
            config or "",
            feature_dirs=FEATURES,
            log_dir=str(log_dir),
            default_logging_enabled=True,
        )
        yield debug_api
    finally:
        debug_api.end_debug()


def statistics(log_dir: Path) -> str:
    """Returns the text of the logs of statistics."""
    folder = log_dir / "nvdlfw_inspect_statistics_logs"
    return "".join(file.read_text() for file in sorted(folder.iterdir()))


def messages(log_dir: Path) -> str:
    """Returns the text of the logs of all other messages."""
    folder = log_dir / "nvdlfw_inspect_logs"
    return "".join(file.read_text() for file in sorted(folder.iterdir()))


def results(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the results of a forward and a backward pass."""
    return {"y": y.detach(), "dgrad": x.grad.clone(), "wgrad": model.weight.grad.clone()}
