# SPDX-License-Identifier: Apache-2.0
"""Sessions of the host for tests, and the layers that they watch."""

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
    """A configuration of one section for all layers, or some."""
    layers = {"layer_types": ["all"]} if layers is None else layers
    return {"section": {"enabled": True, "layers": layers, "transformer_engine": blocks}}


@contextlib.contextmanager
def session(config: dict[str, Any] | None, log_dir: Path) -> Iterator[Any]:
    """The host's api module, in a session with our features."""
    TEDebugState._reset()  # layers of earlier tests may have been made without one
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
    """All that was logged of tensors."""
    folder = log_dir / "nvdlfw_inspect_statistics_logs"
    return "".join(file.read_text() for file in sorted(folder.iterdir()))


def messages(log_dir: Path) -> str:
    """All other messages."""
    folder = log_dir / "nvdlfw_inspect_logs"
    return "".join(file.read_text() for file in sorted(folder.iterdir()))


def results(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """The results of a forward and a backward pass."""
    return {"y": y.detach(), "dgrad": x.grad.clone(), "wgrad": model.weight.grad.clone()}
