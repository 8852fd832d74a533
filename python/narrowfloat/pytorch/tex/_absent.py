# SPDX-License-Identifier: Apache-2.0
"""Lists the entries of TransformerEngine's native module that are missing, with the reasons."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

# Missing features, and the entries that need them. These can be imported; calls raise.
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
    """An error for an unknown entry.

    Also an AttributeError, because programs test for entries with hasattr() and getattr().
    """


def _version() -> str:
    """Returns the name and version of the imported TransformerEngine, for messages."""
    host = sys.modules.get("transformer_engine")
    version = getattr(host, "__version__", None)
    return "TransformerEngine" if version is None else f"TransformerEngine {version}"


def refusal(name: str, need: str) -> NotImplementedError:
    """Returns the error for an entry that needs a missing feature."""
    return NotImplementedError(
        f"transformer_engine_torch.{name}: needs {need}, which narrowfloat does not have "
        f"({_version()})"
    )


def refused(name: str) -> Callable[..., NoReturn]:
    """Returns a function that raises NotImplementedError with the missing feature."""

    def entry(*args: Any, **kwargs: Any) -> NoReturn:
        raise refusal(name, NEEDS[name])

    entry.__name__ = entry.__qualname__ = name
    return entry


def missing(name: str) -> AttributeError:
    """Returns the error for a name that is not an entry of a supported release."""
    if name.startswith("_"):
        return AttributeError(f"module 'narrowfloat.pytorch.tex' has no attribute {name!r}")
    return MissingEntry(
        f"transformer_engine_torch.{name}: narrowfloat has no entry of this name; {_version()} "
        "may be newer than the releases that narrowfloat supports"
    )
