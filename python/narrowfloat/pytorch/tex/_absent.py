# SPDX-License-Identifier: Apache-2.0
"""Names the entries of TransformerEngine's native module that are not here, and why."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

# The feature that entries need, and the entries. They can be imported; calls are refused.
_ENTRIES_BY_NEED = {
    "NCCL's expert parallelism between GPUs": (
        "ep_combine ep_combine_bwd ep_dispatch ep_dispatch_bwd ep_finalize ep_get_zero_copy "
        "ep_handle_mem_size ep_initialize ep_prepare ep_prepare_and_dispatch"
    ),
    "cuSOLVER between GPUs": "cusolvermp_ctx_create cusolvermp_ctx_destroy newton_schulz",
    "cuDNN's grouped kernels": "swizzle_scales_and_pack_ptrs_for_discrete_weights",
    "cuDNN's fused attention": "fused_attn_bwd fused_attn_fwd",
    "NVSHMEM between GPUs": (
        "create_nvshmem_tensor init_nvshmem_backend nvshmem_finalize "
        "nvshmem_send_on_current_stream nvshmem_wait_on_current_stream"
    ),
    "communication that overlaps with products on a GPU": "bulk_overlap_ag_with_external_gemm",
}
NEEDS = {name: need for need, names in _ENTRIES_BY_NEED.items() for name in names.split()}


class MissingEntry(NotImplementedError, AttributeError):
    """Names an entry that is unknown.

    An AttributeError too: programs ask for optional entries with hasattr() and getattr().
    """


def _version() -> str:
    """Returns the release of TransformerEngine that is imported, as messages name it."""
    host = sys.modules.get("transformer_engine")
    version = getattr(host, "__version__", None)
    return "TransformerEngine" if version is None else f"TransformerEngine {version}"


def refusal(name: str, need: str) -> NotImplementedError:
    """Returns the error for an entry that needs what narrowfloat does not have."""
    return NotImplementedError(
        f"transformer_engine_torch.{name}: needs {need}, which narrowfloat does not have "
        f"({_version()})"
    )


def refused(name: str) -> Callable[..., NoReturn]:
    """Returns an entry whose calls raise NotImplementedError with the entry's need."""

    def entry(*args: Any, **kwargs: Any) -> NoReturn:
        raise refusal(name, NEEDS[name])

    entry.__name__ = entry.__qualname__ = name
    return entry


def missing(name: str) -> AttributeError:
    """Returns the error for a name that is no entry of a release that narrowfloat knows."""
    if name.startswith("_"):
        return AttributeError(f"module 'narrowfloat.pytorch.tex' has no attribute {name!r}")
    return MissingEntry(
        f"transformer_engine_torch.{name}: narrowfloat has no entry of this name; {_version()} "
        "may be newer than the releases that narrowfloat supports"
    )
