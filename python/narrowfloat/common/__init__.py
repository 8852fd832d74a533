# SPDX-License-Identifier: Apache-2.0
"""Code that all faces share; nothing here imports a framework."""
