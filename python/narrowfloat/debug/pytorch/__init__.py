# SPDX-License-Identifier: Apache-2.0
"""Debugging of a layer: six DebugQuantizers, and the passes that use them.

Does not import the host, nvdlfw-inspect, before it runs a session.
"""
