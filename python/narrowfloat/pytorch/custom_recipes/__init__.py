# SPDX-License-Identifier: Apache-2.0
"""Recipes in plain torch operations, as readable references, and quantizer factories."""
