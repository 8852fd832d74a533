# SPDX-License-Identifier: Apache-2.0
"""A real sentence model, quantized in every scheme: `make demo`."""
