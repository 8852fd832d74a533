# SPDX-License-Identifier: Apache-2.0
"""Prepares for TransformerEngine's Python: checks, an environment and a native module."""

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from types import ModuleType

from narrowfloat.te import _import_hook
from narrowfloat.te._settings import BESIDE_GPU, SETTINGS
from narrowfloat.te.jax.host import run_base, run_primitives

PACKAGE = "transformer_engine"
OLDEST, NEWEST = (2, 17), (2, 20)
_TRITON = f"{PACKAGE}.pytorch.triton."
# Defaults of the user's variables. jit_fuser works without a compiler; unfused attention, the only
# one on the CPU, emulates FP8. No variable selects it: Megatron rejects that.
ENVIRONMENT = {
    "NVTE_TORCH_COMPILE": "0",
    "NVTE_UnfusedDPA_Emulate_FP8": "1",
    "NVTE_FRAMEWORK": "pytorch",
}
# Functions that a GPU's compiler fuses into one kernel each, which rounds only its results.
_FUSED = (
    "bias_dropout_add_fused_inference_",
    "bias_dropout_add_fused_train_",
    "bias_gelu_fused_",
    "bgrad_dgelu_fused_",
    "dgelu_fused_",
    "gelu_fused_",
)
_ATTENTION = f"{PACKAGE}.pytorch.attention.dot_product_attention.backends"
# The prefix of flash-attn's packages. None of them runs on a CPU.
_FLASH_ATTENTION = "flash-attn"
# TransformerEngine searches CUDA's libraries unless this is set, as in its own build.
_BUILDING = "NVTE_PROJECT_BUILDING"


def refuse_late_start() -> None:
    """Raises ImportError if TransformerEngine has been imported without rewriting."""
    if PACKAGE in sys.modules:
        raise ImportError(
            f"narrowfloat.te: must be imported before {PACKAGE}, which is imported already"
        )


def refuse_other_versions() -> None:
    """Raises ImportError if the installed version of TransformerEngine is not supported."""
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:  # in a folder of sys.path, without metadata
        return
    parts = tuple(int(part) for part in version.split(".")[:2])
    if not OLDEST <= parts <= NEWEST:
        oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
        raise ImportError(f"narrowfloat.te: needs {PACKAGE} {oldest} to {newest}, got {version}")


def refuse_real_module(framework: str, has_gpu: Callable[[], bool]) -> None:
    """Raises ImportError if TransformerEngine runs on a GPU here, unless the user wants the CPU.

    framework: `torch` or `jax`. has_gpu: is called only if the framework's real native module is
    installed.
    """
    if os.environ.get(BESIDE_GPU) == "1" or not _is_real_module_installed(framework):
        return
    if has_gpu():
        raise ImportError(
            f"narrowfloat.te: a GPU and {PACKAGE}'s own native module are there, which this "
            f"module would hide; set {BESIDE_GPU}=1 to run on the CPU all the same"
        )


def _is_real_module_installed(framework: str) -> bool:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return bool(metadata.distribution(f"{PACKAGE}_{framework}"))
    return False


def _pytorch_has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _jax_has_gpu() -> bool:
    import jax

    return any(device.platform == "gpu" for device in jax.devices())


def set_environment() -> None:
    """Sets the variables of TransformerEngine that the user has not set."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def run_package(module: ModuleType, run: Callable[[], None]) -> None:
    """Runs TransformerEngine's top module, after a check that imports PyTorch."""
    refuse_real_module("torch", _pytorch_has_gpu)
    with _frameworks_on_demand(), _collection_paused():
        run()


def run_jax(module: ModuleType, run: Callable[[], None]) -> None:
    """Runs transformer_engine.jax, after a check that starts JAX's devices."""
    refuse_real_module("jax", _jax_has_gpu)
    run()


@contextlib.contextmanager
def _collection_paused() -> Iterator[None]:
    """Disables the garbage collector in a context, and enables it again if it was enabled.

    It would free almost nothing, since an import's objects stay alive, and it takes a fifth of the
    import's time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _frameworks_on_demand() -> Iterator[None]:
    """Prevents the top module from importing a framework that NVTE_FRAMEWORK does not name.

    Later imports of the framework's module, `import transformer_engine.jax`, work.
    """
    wanted = os.environ["NVTE_FRAMEWORK"].split(",")

    def gate(name: str) -> None:
        package, _, framework = name.partition(".")
        if package == PACKAGE and framework in ("pytorch", "jax"):
            if framework not in wanted and "all" not in wanted:
                raise ModuleNotFoundError(f"{name} is imported when it is asked for", name=name)

    _import_hook.GATES.append(gate)
    try:
        yield
    finally:
        _import_hook.GATES.remove(gate)


def run_common(module: ModuleType, run: Callable[[], None]) -> None:
    """Runs transformer_engine.common without its search for CUDA's libraries."""
    before = os.environ.get(_BUILDING)
    os.environ[_BUILDING] = "1"
    try:
        run()
    finally:
        del os.environ[_BUILDING]
        if before is not None:
            os.environ[_BUILDING] = before
    vars(module)["load_framework_extension"] = load_framework_extension


def has_compiler() -> bool:
    """Returns whether TransformerEngine compiles its own functions."""
    return bool(int(os.environ["NVTE_TORCH_COMPILE"]))


def run_fused(module: ModuleType, run: Callable[[], None]) -> None:
    """Runs transformer_engine.pytorch.jit, whose functions become one kernel each on a GPU.

    Without a compiler they compute in float32 and round their results, like such a kernel.
    """
    run()
    if has_compiler():
        return
    from narrowfloat.te._fused import in_float32

    for name in _FUSED:
        setattr(module, name, in_float32(getattr(module, name)))


def run_attention(module: ModuleType, run: Callable[[], None]) -> None:
    """Runs TransformerEngine's attention backends as if flash-attn were not installed."""
    version = metadata.version

    def version_without_flash_attention(distribution_name: str) -> str:
        if distribution_name.startswith(_FLASH_ATTENTION):
            raise metadata.PackageNotFoundError(distribution_name)
        return version(distribution_name)

    metadata.version = version_without_flash_attention
    try:
        run()
    finally:
        metadata.version = version


def run_tensors(module: ModuleType, run: Callable[[], None]) -> None:
    """Runs transformer_engine.pytorch.tensor, which replaces torch.nn.Module.float()."""
    from narrowfloat.pytorch import _module_patch

    run()
    _module_patch.install()


def load_framework_extension(framework: str) -> None:
    """Imports narrowfloat's native module for a framework, `torch` or `jax`."""
    if framework == "torch":
        from narrowfloat.pytorch.tensor._hosted import set_generation

        set_generation(*SETTINGS.generation)
    importlib.import_module(f"{PACKAGE}_{framework}")


def install() -> None:
    """Installs the import hook. Errors: ImportError from the checks above."""
    refuse_late_start()
    refuse_other_versions()
    set_environment()
    _import_hook.SUPPLIED.update(
        {
            f"{PACKAGE}_torch": "narrowfloat.pytorch.tex",
            f"{PACKAGE}_jax": "narrowfloat.te.jax.native",
            f"{PACKAGE}.pytorch.attention.fused_mla_q_uproj": "narrowfloat.te.triton",
            _TRITON: "narrowfloat.te.triton",
            **{
                f"{_TRITON}{name}": f"narrowfloat.te.triton.{name}"
                for name in ("cross_entropy", "grouped_dbias_dscales", "pad", "permutation")
            },
        }
    )
    _import_hook.AROUND.update(
        {
            PACKAGE: run_package,
            f"{PACKAGE}.common": run_common,
            _ATTENTION: run_attention,
            f"{PACKAGE}.jax": run_jax,
            f"{PACKAGE}.jax.cpp_extensions": run_primitives,
            f"{PACKAGE}.jax.cpp_extensions.base": run_base,
            f"{PACKAGE}.pytorch.jit": run_fused,
            f"{PACKAGE}.pytorch.tensor": run_tensors,
        }
    )
    sys.meta_path.insert(0, _import_hook.FINDER)
