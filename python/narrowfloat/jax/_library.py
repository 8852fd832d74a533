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

    Errors: FileNotFoundError if this build of narrowfloat has no XLA handlers.
    """
    path = Path(__file__).parent / "libnarrowfloat_ffi.so"
    if not path.is_file():
        raise FileNotFoundError(f"ffi_library: this build has no XLA handlers ({path})")
    return path


@functools.cache
def registrations() -> dict[str, object]:
    """Returns a capsule for the CPU handler of each target, for jax.ffi.register_ffi_target."""
    return _capsules("")


@functools.cache
def cuda_registrations() -> dict[str, object]:
    """Returns the capsules for the platform CUDA; {} if narrowfloat was built without NF_CUDA."""
    is_built = hasattr(_load(), f"{TARGETS[0]}_cuda")
    return _capsules("_cuda") if is_built else {}


def _load() -> ctypes.CDLL:
    return ctypes.cdll.LoadLibrary(str(ffi_library()))


def _capsules(suffix: str) -> dict[str, object]:
    library = _load()
    return {name: jax.ffi.pycapsule(getattr(library, name + suffix)) for name in TARGETS}


@functools.cache
def register() -> None:
    """Registers every target for each platform that has handlers, once per process.

    JAX accepts handlers for CUDA on a machine without a CUDA device too.
    """
    for platform, handlers in (("cpu", registrations()), ("CUDA", cuda_registrations())):
        for name, handler in handlers.items():
            jax.ffi.register_ffi_target(name, handler, platform=platform)
