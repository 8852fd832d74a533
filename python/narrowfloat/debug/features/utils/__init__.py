# SPDX-License-Identifier: Apache-2.0
"""What several features share: schedules, statistics and their buffers."""
