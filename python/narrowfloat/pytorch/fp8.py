# SPDX-License-Identifier: Apache-2.0
"""Gives the names of quantization under its older module name."""

from narrowfloat.pytorch.quantization import *  # noqa: F403
from narrowfloat.pytorch.quantization import (  # noqa: F401
    __all__,
    _amax_and_scale_update,
    _default_sf_compute,
)
