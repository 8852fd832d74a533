# SPDX-License-Identifier: Apache-2.0
"""JAX primitives over the XLA handlers: abstract evaluation, lowering, batching, partitioning."""
