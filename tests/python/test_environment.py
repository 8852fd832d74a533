# SPDX-License-Identifier: Apache-2.0
"""Tests that threads, forks and the caller's floating-point settings change no byte."""

import ctypes
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import narrowfloat as nf

# Random bits include subnormals, infinities and NaN. In the last rows, the mask clears the
# exponents, so that all items are subnormal.
BITS = np.random.default_rng(13).integers(0, 1 << 32, (256, 512), dtype=np.uint32)
BITS[-64:] &= 0x807FFFFF
X = BITS.view(np.float32)
# Products of these are rounded, and are above and below the smallest normal number.
SMALL = np.random.default_rng(17).standard_normal((96, 160)).astype(np.float32) * np.float32(2**-66)
# Dividing by three rounds, and the smallest amax is subnormal.
AMAXES = np.array([[3, 1e-45, 1], [1, 0, 1]], np.float32)

# Fields of the register MXCSR: rounding modes, subnormals, and the masks of all exceptions.
NEAREST, DOWN, UP, ZERO = 0x0000, 0x2000, 0x4000, 0x6000
FLUSH_TO_ZERO, DENORMALS_ARE_ZERO = 0x8000, 0x0040
MASKS = 0x1F80
SETTINGS = {
    "flush": MASKS | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO,
    "down": MASKS | DOWN,
    "up": MASKS | UP,
    "zero and flush": MASKS | ZERO | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO,
}

MXCSR_SOURCE = """
#include <xmmintrin.h>
void set_mxcsr(unsigned value) { _mm_setcsr(value); }
unsigned get_mxcsr(void) { return _mm_getcsr(); }
"""

FIRST_CALL = """
import ctypes, sys
import numpy as np
import test_environment as t
mxcsr = ctypes.CDLL(sys.argv[1])
t.nf  # imported, not called yet
mxcsr.set_mxcsr(int(sys.argv[2]))
result = t.everything(None)
left = mxcsr.get_mxcsr() & 0xFFC0
mxcsr.set_mxcsr(0x1F80)
print(left, t.digest(result))
"""


def everything(threads: int | None) -> list[bytes]:
    """Returns the bytes of each verb in each scheme, and of an option that is rounded to fp32."""
    found = []
    for scheme in nf.schemes():
        q = nf.quantize(X, scheme, columnwise=True, threads=threads)
        found += [value.tobytes() for value in q.buffers.values()]
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
            found.append(nf.dequantize(q, dtype, threads=threads).tobytes())
        found.append(nf.fake_quantize(X, scheme, threads=threads).tobytes())
        found.append(nf.quantize_dbias(X, scheme, threads=threads)[1].tobytes())
        q = nf.quantize(SMALL, scheme, columnwise=True, threads=threads)
        for layout in ("TN", "NT"):
            found.append(nf.qgemm(q, q, layout=layout, threads=threads).tobytes())
    for value in (0.1, 1e-40, 3e38):
        q = nf.quantize(X, "fp8_e4m3", scale=value, threads=threads)
        found += [value.tobytes() for value in q.buffers.values()]
    for margin in (0.5, 140):  # the second one makes a subnormal number
        updated = nf.update_delayed_scale(AMAXES, AMAXES[0], 448.0, margin)
        found += [value.tobytes() for value in updated]
    return found


def digest(found: list[bytes]) -> str:
    import hashlib

    return hashlib.sha256(b"".join(found)).hexdigest()


EXPECTED = everything(1)


@pytest.fixture(scope="session")
def mxcsr_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to set the rounding mode")
    if os.uname().machine != "x86_64":
        pytest.skip("MXCSR is a register of x86-64")
    folder = tmp_path_factory.mktemp("mxcsr")
    (folder / "mxcsr.c").write_text(MXCSR_SOURCE)
    library = folder / "mxcsr.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", library, folder / "mxcsr.c"], check=True
    )
    return library


@pytest.mark.parametrize("threads", [2, 3, 8, None])
def test_any_number_of_threads(threads: int | None) -> None:
    assert everything(threads) == EXPECTED


def test_number_of_threads_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NF_NUM_THREADS", "2")
    assert everything(None) == EXPECTED
    monkeypatch.setenv("NF_NUM_THREADS", "two")
    with pytest.raises(ValueError, match=r"NF_NUM_THREADS.*two"):
        nf.quantize(X, "mxfp8_e4m3")


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_the_caller_on_later_calls(mxcsr_library: Path, setting: str) -> None:
    mxcsr = ctypes.CDLL(str(mxcsr_library))
    before = mxcsr.get_mxcsr()
    try:
        mxcsr.set_mxcsr(SETTINGS[setting])
        found = everything(None)
        left = mxcsr.get_mxcsr()
    finally:
        mxcsr.set_mxcsr(before)
    assert found == EXPECTED
    # The low six bits are flags of earlier exceptions, which Python's own arithmetic sets.
    assert left & 0xFFC0 == SETTINGS[setting]


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_the_caller_on_the_first_call(mxcsr_library: Path, setting: str) -> None:
    # A new process imports the module; importing test_environment there would call verbs.
    source = FIRST_CALL.replace("import test_environment as t", IMPORT_WITHOUT_CALLING)
    run = subprocess.run(
        [sys.executable, "-c", source, mxcsr_library, str(SETTINGS[setting])],
        capture_output=True,
        text=True,
        check=True,
    )
    left, found = run.stdout.split()
    assert found == digest(EXPECTED)
    assert int(left) == SETTINGS[setting]


IMPORT_WITHOUT_CALLING = f"""
import types
source = open({__file__!r}).read().split("EXPECTED = ")[0]
t = types.SimpleNamespace()
exec(compile(source, "test_environment", "exec"), t.__dict__)
"""


def test_a_forked_child_after_a_parallel_call() -> None:
    assert everything(4) == EXPECTED
    child = os.fork()
    if child == 0:
        os._exit(0 if everything(4) == EXPECTED else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert everything(4) == EXPECTED


def test_calls_from_many_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: everything(1 + i % 3), range(16)))
    assert all(one == EXPECTED for one in found)


def test_threads_share_one_input_and_fill_their_own_outputs() -> None:
    outs = [nf.quantize(np.zeros_like(X), "mxfp8_e4m3") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda out: nf.quantize(X, "mxfp8_e4m3", out=out, threads=2), outs))
    expected = nf.quantize(X, "mxfp8_e4m3").buffers["rowwise_data"]
    assert all((out.buffers["rowwise_data"] == expected).all() for out in outs)


def test_the_scalar_backend_gives_the_same_bytes() -> None:
    source = IMPORT_WITHOUT_CALLING + "print(t.digest(t.everything(None)))"
    for backend in nf.backends():
        run = subprocess.run(
            [sys.executable, "-c", source],
            env={**os.environ, "NF_FORCE_BACKEND": backend},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.strip() == digest(EXPECTED), backend


def test_an_unknown_backend_is_an_error() -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            "import numpy, narrowfloat\n"
            "try: narrowfloat.quantize(numpy.ones(4, 'f4'), 'fp8_e4m3')\n"
            "except NotImplementedError as error: print(error)",
        ],
        env={**os.environ, "NF_FORCE_BACKEND": "abacus"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "abacus" in run.stdout


def test_import_needs_neither_torch_nor_jax() -> None:
    source = (
        "import sys, narrowfloat\n"
        "print([m for m in ('torch', 'jax', 'jaxlib', 'scipy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
