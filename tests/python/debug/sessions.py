# SPDX-License-Identifier: Apache-2.0
"""Runs sessions of the host with narrowfloat's features, and reads their logs."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nvdlfw_inspect.api as debug_api
import yaml

from narrowfloat import debug

FEATURES = str(Path(debug.__file__).parent / "features")

# Bound on the relative difference between a statistic and the same one in float64: two roundings
# to float32 of 2^-24 each, because float64 sums in two orders may round to neighbours.
STORED = 2.0**-23


@contextlib.contextmanager
def session(config: str | Mapping[str, Any] = "", **options: Any) -> Iterator[Path]:
    """Runs a session with a configuration, as YAML text or a dict; yields the log directory."""
    if isinstance(config, str) and config:
        config = yaml.safe_load(config)
    with tempfile.TemporaryDirectory() as folder:
        options = {"feature_dirs": [FEATURES], "log_dir": folder, **options}
        try:
            debug_api.initialize(config, **options)
            yield Path(folder)
        finally:
            debug_api.end_debug()


def te() -> Any:
    """Returns the object of the namespace transformer_engine."""
    return debug_api.transformer_engine


def section(layers: str = ".*", namespace: str = "transformer_engine", **blocks: Any) -> dict:
    """Returns a configuration of one section whose features are all enabled."""
    features = {name: {"enabled": True, **block} for name, block in blocks.items()}
    return {
        "probe": {
            "enabled": True,
            "layers": {"layer_name_regex_pattern": layers},
            namespace: features,
        }
    }


def messages(folder: Path) -> str:
    return (folder / "nvdlfw_inspect_logs/nvdlfw_inspect_globalrank-0.log").read_text()


def logged(folder: Path, rank: int = 0) -> dict[tuple[str, int], float]:
    """Returns the logged statistics by name and iteration."""
    path = folder / f"nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-{rank}.log"
    found = {}
    for line in path.read_text().splitlines():
        name, iteration, value = line.split(" - INFO - ")[1].split("\t\t\t\t")
        found[name.strip(), int(iteration.split("=")[1])] = float(value.split("=")[1])
    return found
