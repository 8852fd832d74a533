# SPDX-License-Identifier: Apache-2.0
"""Writes a package that begins like TransformerEngine and has nothing else."""

import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., subprocess.CompletedProcess]

# The beginnings of TransformerEngine's modules: a search for libraries, a native module, CUDA.
# PyTorch is imported only on use, because its import takes seconds.
PACKAGE = {
    "transformer_engine/__init__.py": """
        import transformer_engine.common
        try:
            from . import pytorch
        except ImportError:
            pass
        try:
            from . import jax
        except ImportError:
            pass
        """,
    "transformer_engine/common/__init__.py": """
        import os
        if "NVTE_PROJECT_BUILDING" not in os.environ:
            raise OSError("libcudnn is not there")
        def load_framework_extension(framework):
            raise FileNotFoundError(framework)
        """,
    "transformer_engine/jax.py": "",
    "transformer_engine/pytorch/__init__.py": """
        from transformer_engine.common import load_framework_extension
        from .triton import mhc, new_kernels
        def device():
            return "cuda"
        """,
    "transformer_engine/pytorch/native.py": """
        import torch
        import transformer_engine_torch as tex
        def facts():
            device = torch.device("cuda", torch.cuda.current_device())
            memory = torch.cuda.memory.mem_get_info()[0] > 0
            return device.type, torch.cuda.get_device_capability(), memory
        """,
    "transformer_engine/pytorch/triton/__init__.py": "",
    "transformer_engine/pytorch/triton/mhc.py": "import triton_is_not_installed",
}


def write(folder: Path, files: dict[str, str]) -> None:
    """Writes files below a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
