# SPDX-License-Identifier: Apache-2.0
"""Tests the shared library: its symbols, its dependencies, and the modules that it imports."""

import ctypes
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import narrowfloat.jax as nfj
import pytest
from narrowfloat.jax._library import TARGETS
from narrowfloat.jax.cpp_extensions.quantization import get_dbias_quantize_workspace_sizes


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_every_target_is_a_symbol_and_nothing_else_is() -> None:
    listed = output_of("nm", "-D", "--defined-only", "--demangle", str(nfj.ffi_library()))
    symbols = {line.split(maxsplit=2)[2] for line in listed.splitlines()}
    functions = {name for name in symbols if "(" in name}
    on_cuda = {f"{name}_cuda" for name in nfj.cuda_registrations()}
    assert symbols - functions == set(TARGETS) | on_cuda
    (question,) = functions
    assert question.startswith("narrowfloat::xla_ffi::GetDBiasQuantizeWorkspaceSizes(")


def test_any_program_can_load_it() -> None:
    library = ctypes.CDLL(str(nfj.ffi_library()))
    for name in TARGETS:
        assert getattr(library, name)
    assert nfj.registrations().keys() == set(TARGETS)
    assert nfj.cuda_registrations().keys() in (set(), set(TARGETS))


def test_what_it_needs() -> None:
    dynamic = output_of("readelf", "-d", str(nfj.ffi_library()))
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    never = ("libgomp", "jaxlib", "libxla", "libpython", "libtorch", "libcuda")
    assert needed and not [name for name in needed if name.startswith(never)]


def test_narrowfloat_itself_imports_no_framework() -> None:
    code = "import sys, narrowfloat; print({'jax', 'jaxlib', 'torch'} & set(sys.modules))"
    assert output_of(sys.executable, "-c", code) == "set()\n"


def test_registering_again_is_fine() -> None:
    for name, handler in nfj.registrations().items():
        jax.ffi.register_ffi_target(name, handler, platform="cpu")


def test_a_target_that_is_not_there_is_not_found() -> None:
    call = jax.ffi.ffi_call("te_gemm_ffi", jax.ShapeDtypeStruct((1,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="te_gemm_ffi"):
        call(jnp.ones(1)).block_until_ready()


def test_the_workspace_of_dbias() -> None:
    """Checks a row per strip of 128 rows, float32 for all types: TransformerEngine's number 4."""
    for rows, shape in [(128, [1, 96]), (129, [2, 96]), (0, [1])]:
        assert get_dbias_quantize_workspace_sizes(rows, 96, 6, 7, 9, 2, 2) == ((shape, 4),)
