# SPDX-License-Identifier: Apache-2.0
"""Imports PyTorch; its error message says how to install it. The package imports this first."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "narrowfloat.pytorch needs PyTorch: pip install 'narrowfloat[torch]'", name="torch"
    ) from error
