# SPDX-License-Identifier: Apache-2.0
"""TransformerEngine's own encoder example for JAX, on the CPU."""
