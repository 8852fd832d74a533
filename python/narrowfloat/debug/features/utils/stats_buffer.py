# SPDX-License-Identifier: Apache-2.0
"""Statistics between the tensors that feed them and the log."""

from __future__ import annotations

from typing import Any


class StatsBuffers:
    """All buffers of the process."""

    def reset(self) -> None:
        """Forgets everything."""

    def log_stats(self) -> dict[Any, Any]:
        """Logs what was fed since the last call."""
        return {}


STATS_BUFFERS = StatsBuffers()
