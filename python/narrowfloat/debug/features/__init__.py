# SPDX-License-Identifier: Apache-2.0
"""The features; give this directory to the host's initialize() as `feature_dirs`."""
