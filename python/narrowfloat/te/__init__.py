# SPDX-License-Identifier: Apache-2.0
"""Runs TransformerEngine's own Python, unmodified, on a CPU.

    import narrowfloat.te                      # first
    import transformer_engine.pytorch as te    # then as usual

TransformerEngine is installed separately, as a wheel without its native parts. Its modules are
rewritten in memory as they are imported; narrowfloat.pytorch.tex is their native module. Other
packages use PyTorch unchanged. Not affiliated with NVIDIA.
"""

import os
import sys

from narrowfloat.te import _host
from narrowfloat.te._rewrite import Rewrite
from narrowfloat.te._settings import ALSO, AS, SETTINGS

__all__ = ["Rewrite", "also", "emulate"]


def emulate(generation: str) -> None:
    """Chooses the GPU generation that the CPU emulates: "9.0" or "10.0", the default.

    Requires: transformer_engine is not imported yet.
    Errors: ValueError for another generation; ImportError after the import.
    """
    if _host.PACKAGE in sys.modules:
        raise ImportError(
            f"narrowfloat.te.emulate: must be called before {_host.PACKAGE} is imported"
        )
    SETTINGS.choose_generation(generation)


def also(packages: str) -> None:
    """Adds packages to rewrite. packages: names separated by commas.

    Requires: they are not imported yet.
    """
    SETTINGS.add_packages(packages)


_host.install()
if os.environ.get(AS):
    emulate(os.environ[AS])
also(os.environ.get(ALSO, ""))
