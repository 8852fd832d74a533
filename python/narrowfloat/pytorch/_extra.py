# SPDX-License-Identifier: Apache-2.0
"""Imports PyTorch, or says how to install it; the package imports this module first."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "narrowfloat.pytorch needs PyTorch: pip install 'narrowfloat[torch]'", name="torch"
    ) from error
