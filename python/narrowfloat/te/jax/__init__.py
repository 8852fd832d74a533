# SPDX-License-Identifier: Apache-2.0
"""What TransformerEngine for JAX needs around it on a CPU."""
