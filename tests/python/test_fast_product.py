# SPDX-License-Identifier: Apache-2.0
"""Tests the fast mode of products on NumPy. Each test loads oneDNN in a separate process."""

import os
import subprocess
import sys

import pytest

from narrowfloat import _core

BOUND = """
import numpy as np
import narrowfloat as nf
M, N, K = 130, 96, 320
rng = np.random.default_rng(7)
x, w = (rng.standard_normal((rows, K)).astype(np.float32) for rows in (M, N))
for scheme in nf.schemes():
    a, b = nf.quantize(x, scheme), nf.quantize(w, scheme)
    fast = nf.qgemm(a, b, mode="fast", threads=2)
    values = [nf.dequantize(q, np.float32).astype(np.float64) for q in (a, b)]
    want, size = values[0] @ values[1].T, np.abs(values[0]) @ np.abs(values[1]).T
    # K sums and the factors, each a rounding; then one of the result: docs/exactness.md.
    bound = (K + 8) * 2.0**-24 * size + np.abs(want) * 2.0**-24
    assert (np.abs(fast - want) <= bound).all(), scheme
    assert (fast == nf.qgemm(a, b, mode="fast", threads=2)).all()
    assert (nf.grouped_qgemm([a], [b], mode="fast", threads=2)[0] == fast).all()
    kept = np.empty_like(fast)
    gelu = nf.qgemm(a, b, mode="fast", gelu=True, gelu_in=kept, threads=2)
    assert (np.abs(kept - want) <= bound).all(), scheme
    x64 = kept.astype(np.float64)
    v = 2 * np.sqrt(2 / np.pi) * (x64 + 0.044715 * x64**3)
    exact = x64 / (1 + np.exp(np.minimum(-v, 700)))
    # Half a step of float32, 2^-150 where it is subnormal, and what two float64 ways differ by.
    assert (np.abs(gelu - exact) <= (2.0**-24 + 2.0**-40) * np.abs(exact) + 2.0**-150).all()
assert (nf.qgemm(a, b, mode="reproducible") == nf.qgemm(a, b)).all()
"""
ONE_ROW = """
import numpy as np
import narrowfloat as nf
# The first products of a process: oneDNN keeps what it makes for one, and uses it for others.
for scheme in ("mxfp8_e4m3", "fp8_e4m3", "nvfp4"):
    row, rows = (nf.quantize(np.ones((count, 64), np.float32), scheme) for count in (1, 48))
    product = nf.qgemm(row, rows, mode="fast")
    assert product.shape == (1, 48)
    assert (product == nf.qgemm(rows, rows, mode="fast")[:1]).all()
    assert (nf.grouped_qgemm([rows, row], [rows, rows], mode="fast")[1] == product).all()
"""
ENVIRONMENT = """
import numpy as np
import narrowfloat as nf
a = nf.quantize(np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32), "nvfp4")
assert (nf.qgemm(a, a) == nf.qgemm(a, a, mode="fast")).all()
assert (nf.qgemm(a, a) != nf.qgemm(a, a, mode="reproducible")).any()
"""
BESIDE_TORCH = """
import torch
import numpy as np
import narrowfloat as nf
a = nf.quantize(np.ones((64, 64), np.float32), "mxfp8_e4m3")
assert (nf.qgemm(a, a, mode="fast") == 64).all()
maps = open("/proc/self/maps").read().split()
runtimes = {path for path in maps if "/libgomp" in path or "/libiomp" in path or "/libomp" in path}
assert len(runtimes) == 1, runtimes
"""
BESIDE_ANOTHER_RUNTIME = """
import _struct
import ctypes
import pathlib
import shutil
import tempfile
import numpy as np
import narrowfloat as nf
copy = pathlib.Path(tempfile.mkdtemp()) / "libiomp5.so"  # any library of that name
shutil.copy(_struct.__file__, copy)
ctypes.PyDLL(str(copy))
a = nf.quantize(np.ones((64, 64), np.float32), "mxfp8_e4m3")
out = np.full((64, 64), 7, np.float32)
try:
    nf.qgemm(a, a, out=out, mode="fast")
except NotImplementedError as error:
    start = "qgemm: mode 'fast' needs a process without another OpenMP runtime than oneDNN's"
    assert str(error) == f"{start} libgomp.so.1, got {copy}", error
    assert (out == 7).all()
else:
    raise SystemExit("a second OpenMP runtime was loaded")
finally:
    shutil.rmtree(copy.parent)
"""
ABSENT = """
import numpy as np
import narrowfloat as nf
a = nf.quantize(np.ones((64, 64), np.float32), "mxfp8_e4m3")
try:
    nf.qgemm(a, a, mode="fast")
except NotImplementedError as error:
    message = "qgemm: mode 'fast' needs oneDNN (Debian and Ubuntu: libdnnl2) and the module"
    remedy = "libnarrowfloat_onednn.so, whose path may be in NF_ONEDNN_MODULE, got: "
    assert str(error).startswith(f"{message} {remedy}/nowhere/"), error
else:
    raise SystemExit("no error")
"""

needs_bfloat16 = pytest.mark.usefixtures("bfloat16_products")


@pytest.fixture
def bfloat16_products() -> None:
    """Skips the test on processors without bfloat16 products."""
    if not _core.has_bfloat16_products():
        pytest.skip("this processor has no bfloat16 products")


def run(source: str, **environment: str) -> None:
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "mode 'fast' needs oneDNN" in done.stderr and source is not ABSENT:
        pytest.skip("this build has no oneDNN")
    assert done.returncode == 0, done.stderr


def test_every_scheme_is_within_the_bound() -> None:
    run(BOUND)


def test_one_row_is_multiplied() -> None:
    run(ONE_ROW)


@needs_bfloat16
def test_the_environment_chooses_the_mode_of_calls_that_name_none() -> None:
    run(ENVIRONMENT, NF_PRODUCT="fast")


@needs_bfloat16
def test_no_second_openmp_runtime_comes_beside_pytorch() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    run(BESIDE_TORCH)


@needs_bfloat16
def test_another_openmp_runtime_is_refused() -> None:
    run(BESIDE_ANOTHER_RUNTIME)


@needs_bfloat16
def test_a_missing_library_is_named() -> None:
    run(ABSENT, NF_ONEDNN_MODULE="/nowhere/libnarrowfloat_onednn.so")


def test_other_modes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "qgemm: mode must be 'reproducible' or 'fast', got 'quick'"
    with pytest.raises(ValueError, match=f"^{message}$"):
        _core.product_mode("quick")
    monkeypatch.setenv("NF_PRODUCT", "quick")
    message = "qgemm: NF_PRODUCT must be 'reproducible' or 'fast', got 'quick'"
    with pytest.raises(ValueError, match=f"^{message}$"):
        _core.product_mode()
