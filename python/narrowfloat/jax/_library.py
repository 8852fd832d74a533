# SPDX-License-Identifier: Apache-2.0
"""The shared library of XLA handlers, and its registration with JAX."""

import ctypes
import functools
from pathlib import Path

import jax

TARGETS = (
    "te_dbias_quantize_ffi",
    "te_grouped_quantize_ffi",
    "te_grouped_quantize_v2_ffi",
    "te_dequantize_ffi",
    "te_rht_amax_ffi",
    "te_inspect_ffi",
    "nf_dequantize_ffi",
    "nf_fake_quantize_ffi",
    "nf_gemm_ffi",
    "nf_expand_product_ffi",
    "nf_amax_ffi",
    "nf_grouped_amax_ffi",
    "nf_scale_from_amax_ffi",
    "nf_update_delayed_scale_ffi",
)


def ffi_library() -> Path:
    """Returns the path of the library that exports a handler under the name of each target.

    Errors: FileNotFoundError if this build of narrowfloat has none.
    """
    path = Path(__file__).parent / "libnarrowfloat_ffi.so"
    if not path.is_file():
        raise FileNotFoundError(f"ffi_library: this build has no XLA handlers ({path})")
    return path


@functools.cache
def registrations() -> dict[str, object]:
    """Returns a capsule of the handler of every target, for jax.ffi.register_ffi_target."""
    library = ctypes.cdll.LoadLibrary(str(ffi_library()))
    return {name: jax.ffi.pycapsule(getattr(library, name)) for name in TARGETS}


@functools.cache
def register() -> None:
    """Registers every target for the CPU, once a process."""
    for name, handler in registrations().items():
        jax.ffi.register_ffi_target(name, handler, platform="cpu")
