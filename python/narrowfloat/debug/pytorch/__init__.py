# SPDX-License-Identifier: Apache-2.0
"""Debugging of a layer: six watching quantizers, and the passes that need them.

Nothing here imports the host, nvdlfw-inspect, before a session of it runs.
"""
