# SPDX-License-Identifier: Apache-2.0
"""The buffers of statistics, under TransformerEngine's module name."""

from narrowfloat.debug._statistic_buffers import STATS_BUFFERS, StatsBuffers

__all__ = ["STATS_BUFFERS", "StatsBuffers"]
