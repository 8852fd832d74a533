# SPDX-License-Identifier: Apache-2.0
"""The autograd functions, under TransformerEngine's module name."""

from narrowfloat.pytorch._autograd import (
    _IdentityFunc,
    _QuantizeFunc,
    _ReshapeFunc,
    _ViewFunc,
)

__all__ = ["_IdentityFunc", "_QuantizeFunc", "_ReshapeFunc", "_ViewFunc"]
