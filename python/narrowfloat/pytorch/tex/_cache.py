# SPDX-License-Identifier: Apache-2.0
"""The size of the parts in which entries process large tensors."""

__all__: list[str] = []

CACHED_ELEMENTS = 2**18  # a part of 1 MiB in float32, which fits in a cache
