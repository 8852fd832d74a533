# SPDX-License-Identifier: Apache-2.0
"""Replaces transformer_engine_jax, TransformerEngine's native module for JAX.

The handlers come from narrowfloat.jax. host.py lowers other primitives to functions of JAX, or
disables them, so that TransformerEngine uses its JAX code. Entries for disabled ones raise.
"""

from collections.abc import Callable
from typing import NoReturn

from narrowfloat import jax as _handlers
from narrowfloat.te._settings import SETTINGS
from narrowfloat.te.jax import enums as _enums
from narrowfloat.te.jax.enums import *  # noqa: F403
from narrowfloat.te.jax.enums import (
    DType,
    NVTE_Fused_Attn_Backend,
    NVTE_QKV_Format,
    NVTE_QKV_Layout,
)

__all__ = [
    *_enums.__all__,
    "get_cgemm_num_max_streams",
    "get_cublasLt_version",
    "get_cuda_version",
    "get_cudnn_frontend_version",
    "get_cudnn_version",
    "get_dact_dbias_quantize_workspace_sizes",
    "get_dbias_quantize_workspace_sizes",
    "get_device_compute_capability",
    "get_fused_attn_backend",
    "get_fused_attn_bwd_workspace_sizes",
    "get_fused_attn_fwd_workspace_sizes",
    "get_grouped_gemm_setup_workspace_size",
    "get_norm_bwd_workspace_sizes",
    "get_norm_fwd_workspace_sizes",
    "get_num_compute_streams",
    "get_topk_workspace_sizes",
    "initialize_cgemm_communicator",
    "is_collective_gemm_with_cublasmp",
    "is_non_nt_fp8_gemm_supported",
    "nvte_built_with_cublasmp",
    "nvte_get_qkv_format",
    "registrations",
]


def registrations() -> dict[str, object]:
    """Returns TransformerEngine's handlers by the names of their targets.

    They are the handlers of the CPU: TransformerEngine registers them for CUDA, and rewriting
    replaces that platform by the CPU.
    """
    handlers = _handlers.registrations()
    return {name: handler for name, handler in handlers.items() if name.startswith("te_")}


def get_device_compute_capability(device: int = 0) -> int:
    """Returns the chosen generation, such as 100 for 10.0."""
    major, minor = SETTINGS.generation
    return 10 * major + minor


def is_non_nt_fp8_gemm_supported() -> bool:
    """Returns whether products of the generation read per-tensor FP8 in any layout."""
    return SETTINGS.generation >= (10, 0)


# The versions are later than every version that TransformerEngine's recipes require.
def get_cuda_version() -> int:
    """Returns 13.0 in CUDA's notation."""
    return 13000


def get_cublasLt_version() -> int:
    """Returns 13.1 in cuBLAS's notation."""
    return 130100


def get_cudnn_version() -> int:
    """Returns 9.13 in cuDNN's notation."""
    return 91300


def get_cudnn_frontend_version() -> int:
    """Returns 1.12 in the notation of cuDNN's front end."""
    return 11200


def get_num_compute_streams() -> int:
    """Returns 1: work on the CPU runs in one order."""
    return 1


def get_cgemm_num_max_streams() -> int:
    """Returns 1: work on the CPU runs in one order."""
    return 1


def nvte_built_with_cublasmp() -> bool:
    """Returns False."""
    return False


def is_collective_gemm_with_cublasmp() -> bool:
    """Returns False."""
    return False


# Every layout of TransformerEngine for JAX.
_FORMATS = {
    NVTE_QKV_Layout.NVTE_BS3HD: NVTE_QKV_Format.NVTE_BSHD,
    NVTE_QKV_Layout.NVTE_BSHD_BS2HD: NVTE_QKV_Format.NVTE_BSHD,
    NVTE_QKV_Layout.NVTE_BSHD_BSHD_BSHD: NVTE_QKV_Format.NVTE_BSHD,
    NVTE_QKV_Layout.NVTE_T3HD: NVTE_QKV_Format.NVTE_THD,
    NVTE_QKV_Layout.NVTE_THD_T2HD: NVTE_QKV_Format.NVTE_THD,
    NVTE_QKV_Layout.NVTE_THD_THD_THD: NVTE_QKV_Format.NVTE_THD,
}


def nvte_get_qkv_format(layout: NVTE_QKV_Layout) -> NVTE_QKV_Format:
    """Returns the order of a layout's dimensions."""
    return _FORMATS[layout]


def _smallest_workspace(*arguments: object) -> tuple[tuple[tuple[int], DType]]:
    """Returns the smallest buffer: no function here needs a workspace."""
    return (((1,), DType.kByte),)


get_dact_dbias_quantize_workspace_sizes = _smallest_workspace
get_norm_bwd_workspace_sizes = _smallest_workspace
get_norm_fwd_workspace_sizes = _smallest_workspace
get_topk_workspace_sizes = _smallest_workspace


def get_dbias_quantize_workspace_sizes(*arguments: object) -> tuple[tuple[tuple[int], DType]]:
    """Returns the smallest buffer, in the handler's type."""
    return (((1,), DType.kFloat32),)


def get_fused_attn_backend(
    *arguments: object,
) -> NVTE_Fused_Attn_Backend | tuple[NVTE_Fused_Attn_Backend, str]:
    """Returns NVTE_No_Backend: no backend of fused attention runs on a CPU.

    TransformerEngine 2.20 passes all parameters in one argument, and expects the reason beside the
    backend; earlier releases pass several, and expect the backend alone.
    """
    backend = NVTE_Fused_Attn_Backend.NVTE_No_Backend
    one = len(arguments) == 1
    return (backend, "narrowfloat.te: the CPU has no cuDNN") if one else backend


def get_grouped_gemm_setup_workspace_size(groups: int) -> NoReturn:
    """Raises RuntimeError, so that TransformerEngine does not use cuBLAS's grouped product."""
    raise RuntimeError("narrowfloat.te: the CPU has no cuBLAS, whose grouped product this sizes")


def _refused(name: str) -> Callable[..., NoReturn]:
    """Returns a function that raises NotImplementedError with the name in the message."""

    def refuse(*arguments: object, **named: object) -> NoReturn:
        raise NotImplementedError(f"narrowfloat.te: {name} belongs to a kernel that needs a GPU")

    refuse.__name__ = name
    refuse.__doc__ = "Raises NotImplementedError."
    return refuse


get_fused_attn_bwd_workspace_sizes = _refused("get_fused_attn_bwd_workspace_sizes")
get_fused_attn_fwd_workspace_sizes = _refused("get_fused_attn_fwd_workspace_sizes")
initialize_cgemm_communicator = _refused("initialize_cgemm_communicator")
