# SPDX-License-Identifier: Apache-2.0
"""Descriptions of tensors that need no data, for graphs."""

from narrowfloat.pytorch.dynamo.tensor_spec import TensorSpec, to_tensor_spec

__all__ = ["TensorSpec", "to_tensor_spec"]
