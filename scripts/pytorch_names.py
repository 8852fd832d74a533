# SPDX-License-Identifier: Apache-2.0
"""Compares narrowfloat.pytorch with TransformerEngine's names, for docs/pytorch.md.

te_names.json has the names. A name is here if the module with the same path has it. THEMES has the
kinds of the others: specific to TransformerEngine, or without use on the CPU.
"""

import importlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from narrowfloat.pytorch.tex._absent import NEEDS
from te_names import LIST, NATIVE

HERE, ABSENT, GPU = "here", "not here", "GPU only"
STATES = (HERE, ABSENT, GPU)
ROOTS = {
    NATIVE: "narrowfloat.pytorch.tex",
    "transformer_engine.pytorch": "narrowfloat.pytorch",
    "transformer_engine.common": "narrowfloat.common",
}


@dataclass(frozen=True)
class Theme:
    """A row of the table, and the modules with names that it counts, by the ends of their paths."""

    title: str
    modules: tuple[str, ...]
    gpu_modules: tuple[str, ...] = ()
    note: str = ""


THEMES = (
    Theme(
        "quantized tensors",
        ("quantized_tensor", "tensor"),
        note="`InnerTensor`, `BANNED_SHAPE_OPS`: how its storages declare buffers; ours do it "
        "with `BUFFERS`",
    ),
    Theme(
        "recipes and their state",
        ("quantization", "common.recipe", "custom_recipes", "torch_version"),
        note="`FP8GlobalState`: its slots are for CUDA graphs; `FP8GlobalStateManager` is here",
    ),
    Theme("products", ("cpp_extensions.gemm",), note="workspaces are cuBLAS's"),
    Theme("layers", ("module", "transformer"), note="overlap with communication needs a GPU"),
    Theme("attention", ("attention", "cpp_extensions.fused_attn")),
    Theme("fusible operations", ("ops", "jit")),
    Theme("optimizers", ("optimizers",), ("optimizers.newton_schulz", "newton_schulz")),
    Theme("mixture of experts", ("permutation", "router"), ("ep",)),
    Theme("distributed training", ("distributed", "distributed_weight")),
    Theme("graphs and export", ("dynamo", "export", "onnx_extensions"), ("graph",)),
    Theme("offloading to host memory", (), ("cpu_offload", "cpu_offload_v1")),
    Theme("constants and small tools", ("constants", "utils", "cross_entropy", "numerics_debug")),
    Theme("Triton kernels", (), ("triton",)),
    Theme("native module (`tex`)", (NATIVE,), note="only what the names above need"),
)

# Names without a meaning on the CPU, in modules with other names.
GPU_NAMES = frozenset(
    "CommOverlap CommOverlapHelper CommOverlapP2P CommOverlapType CudaRNGStatesTracker "
    "CusolverMpCtx FusedMLAQUpProjFunction FusedMLAQUpProjRopeQuant UserBufferQuantizationMode "
    "bulk_overlap_ag_with_external_gemm cusolvermp_ctx_create cusolvermp_ctx_destroy destroy_ub "
    "device_supports_multicast ep_combine ep_combine_bwd ep_dispatch ep_dispatch_bwd ep_finalize "
    "ep_get_zero_copy ep_handle_mem_size ep_initialize ep_prepare ep_prepare_and_dispatch "
    "ep_zero_copy_supported fill_userbuffers_buffer_for_all_gather get_cublasLt_version "
    "get_cublas_workspace get_cublas_workspace_size_bytes get_grouped_gemm_setup_workspace_size "
    "get_num_cublas_streams get_nvtx_range_context get_sm_count get_stream_priority_range "
    "get_symmetric_memory_tensor get_ub graph_safe_rng_available "
    "initialize_affine_weight_gpu initialize_ub is_graph_safe_rng_state is_ub_initialized "
    "make_graphed_callables newton_schulz newton_schulz_tp nvtx_range_pop nvtx_range_push "
    "release_symm_mem_pool symm_mem_alloc symmetric_all_reduce torch_get_autocast_gpu_dtype "
    "ubuf_built_with_mpi HAS_TORCH_SYMMETRIC".split()
)

# Names that modules export besides TransformerEngine's.
OURS = {
    "transformer_engine.pytorch": {
        "GroupedTensor",
        "GroupedTensorStorage",
        "convert_model",
        "export",
        "get_product_mode",
        "product_mode",
    },
    "transformer_engine.pytorch.distributed": {"QuantizedColwiseParallel"},
    "transformer_engine.pytorch.module": {"convert_model"},
    "transformer_engine.pytorch.quantization": {"update_amax_and_scale"},
    "transformer_engine.pytorch.tensor.storage": {
        "HybridQuantizedTensorStorage",
        "IdentityTensorStorage",
    },
    "transformer_engine.common.recipe": {"FormatRange"},
    # In the native module too; its Python code does not use them, or gets them in another way.
    "transformer_engine_torch": {
        "CommOverlapAlgo",
        "CommOverlapBase",
        "CommOverlapCore",
        "CommOverlapP2PBase",
        "Float8BlockScaleTensorFormat",
        "get_cudnn_version",
        "group_dequantize",
        "multi_tensor_pad_last_dim",
        "multi_tensor_quantize",
        "multi_tensor_swizzle_scales_for_gemm_",
        "nvte_built_with_cublasmp",
    },
}


def beside(module: str) -> set[str]:
    """Returns the public names in this module's __all__ that TransformerEngine's does not have."""
    exported = getattr(module_here(module), "__all__", ())
    return {name for name in exported if not name.startswith("_")} - set(
        listed()["modules"][module]
    )


@cache
def listed() -> dict:
    """Returns the content of te_names.json."""
    return json.loads(LIST.read_text(encoding="utf-8"))


def ours_of(module: str) -> str:
    """Returns the path of the module that corresponds to TransformerEngine's module."""
    root = next(root for root in ROOTS if module == root or module.startswith(root + "."))
    return ROOTS[root] + module.removeprefix(root)


@cache
def module_here(module: str) -> object | None:
    """Returns the module with that path, or None if it does not exist."""
    path = ours_of(module)
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise  # the module exists, but imports one that is not installed
        return None


def _is_in(module: str, parts: tuple[str, ...]) -> bool:
    short = module.removeprefix("transformer_engine.").removeprefix("pytorch.")
    return any(short == part or short.startswith(part + ".") for part in parts)


def theme_of(module: str) -> Theme:
    """Returns the row that counts `module`. Errors: ValueError if no row or several do."""
    found = [theme for theme in THEMES if _is_in(module, theme.modules + theme.gpu_modules)]
    if len(found) != 1:
        raise ValueError(f"pytorch_names: {module} needs one theme, got {len(found)}")
    return found[0]


def is_package(module: str) -> bool:
    """Returns whether every name of `module` is also listed by a module below it."""
    return module in ("transformer_engine.pytorch", "transformer_engine.pytorch.cpp_extensions")


def state_of(module: str, name: str) -> str:
    """Returns which of STATES the name has at this path."""
    if module == NATIVE and name in NEEDS:
        return GPU
    if hasattr(module_here(module), name):
        return HERE
    gpu = name in GPU_NAMES or (
        not is_package(module) and _is_in(module, theme_of(module).gpu_modules)
    )
    return GPU if gpu else ABSENT


def homes() -> Iterator[tuple[str, str]]:
    """Yields every distinct name once per theme, with the deepest module that lists it."""
    seen: set[tuple[str, str]] = set()
    modules = listed()["modules"]
    for module in sorted(modules, key=lambda path: (-path.count("."), path)):
        if not is_package(module):
            for name in modules[module]:
                key = (theme_of(module).title, name)
                if key not in seen:
                    seen.add(key)
                    yield module, name


def table() -> str:
    """Returns the table of themes and counts for docs/pytorch.md, in Markdown."""
    counts: dict[str, Counter] = {theme.title: Counter() for theme in THEMES}
    for module, name in homes():
        counts[theme_of(module).title][state_of(module, name)] += 1
    lines = ["| | here | not here | GPU only | |", "| --- | ---: | ---: | ---: | --- |"]
    for theme in THEMES:
        numbers = " | ".join(str(counts[theme.title][state]) for state in STATES)
        lines.append(f"| {theme.title} | {numbers} | {theme.note} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def full_list() -> str:
    """Returns every module's names by state for docs/pytorch_names.md, in Markdown."""
    lines = []
    for module, names in listed()["modules"].items():
        lines.append(f"\n## `{ours_of(module)}`\n")
        for state in STATES:
            having = [f"`{name}`" for name in names if state_of(module, name) == state]
            if having:
                lines += ["", f"{state}: " + " ".join(having)]
    return "\n".join(lines).replace("\n\n\n", "\n\n").lstrip("\n") + "\n"
