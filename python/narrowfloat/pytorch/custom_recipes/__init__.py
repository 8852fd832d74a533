# SPDX-License-Identifier: Apache-2.0
"""Recipes in plain torch operations: references to read and to copy, and quantizer factories."""
