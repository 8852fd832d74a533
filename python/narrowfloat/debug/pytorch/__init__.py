# SPDX-License-Identifier: Apache-2.0
"""What a layer needs to be debugged: six watching quantizers, and when they are worth making.

Nothing here imports the host, nvdlfw-inspect, before a session of it runs.
"""
