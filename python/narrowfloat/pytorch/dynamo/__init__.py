# SPDX-License-Identifier: Apache-2.0
"""Classes for graphs: descriptions of tensors without data, and quantizers that are constants."""

from narrowfloat.pytorch.dynamo.quantizer_opaque import (
    is_value_opaque_quantizer,
    register_value_opaque_quantizer,
)
from narrowfloat.pytorch.dynamo.tensor_spec import TensorSpec, to_tensor_spec

__all__ = [
    "TensorSpec",
    "is_value_opaque_quantizer",
    "register_value_opaque_quantizer",
    "to_tensor_spec",
]
