# SPDX-License-Identifier: Apache-2.0
"""Emulation that TransformerEngine for JAX needs on a CPU."""
