# SPDX-License-Identifier: Apache-2.0
"""Tests the repaired wheel in a clean environment. NF_WHEEL is its path."""

import os
import re
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

WHEEL = os.environ.get("NF_WHEEL")
pytestmark = pytest.mark.skipif(not WHEEL, reason="NF_WHEEL names no wheel")

# Libraries that any Linux has, as manylinux lists it; everything else is in the wheel.
SYSTEM = {
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "libstdc++.so.6",
}
BUNDLED = ("libtbb", "libhwy")
# The module of mode "fast", which loads oneDNN from the machine or names it as missing.
ONEDNN_MODULE = "libnarrowfloat_onednn.so"
NEVER = ("libgomp", "libdnnl", "libtorch", "libc10", "jaxlib", "libxla", "libcuda", "libpython")


# The caller's own paths must not be visible in the clean environment.
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, env=CLEAN, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=True)
    output_of(folder / "bin" / "pip", "install", "-q", WHEEL)
    return folder


def needed(path: Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-d", path)))


def elf_files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]


def test_it_works_without_anything_else(environment: Path) -> None:
    source = (
        "import numpy as np, narrowfloat as nf\n"
        "q = nf.quantize(np.ones((64, 64), np.float32), 'mxfp8_e4m3', columnwise=True)\n"
        "assert (q.dequantize() == 1).all()\n"
        "print(nf.__version__)"
    )
    version = output_of(environment / "bin" / "python", "-c", source).strip()
    assert Path(WHEEL).name.startswith(f"narrowfloat-{version}-")
    listed = output_of(environment / "bin" / "pip", "list", "--format=freeze")
    installed = {line.split("==")[0] for line in listed.split()} - {"pip", "setuptools"}
    assert installed == {"ml_dtypes", "narrowfloat", "numpy"}


def test_the_command_line_is_in_it(environment: Path) -> None:
    text = output_of(environment / "bin" / "narrowfloat", "version")
    assert re.search(r"\d+\.\d+\.\d+", text)[0] in Path(WHEEL).name


def test_the_manual_and_the_completions_are_installed(environment: Path) -> None:
    share = environment / "share"
    assert (share / "man" / "man1" / "narrowfloat.1").read_text().startswith(".TH NARROWFLOAT 1")
    for path in (
        "bash-completion/completions/narrowfloat",
        "zsh/site-functions/_narrowfloat",
        "fish/vendor_completions.d/narrowfloat.fish",
    ):
        assert "completion of narrowfloat" in (share / path).read_text()


def test_its_shared_libraries(environment: Path) -> None:
    site = next((environment / "lib").glob("python*/site-packages"))
    package = elf_files(site / "narrowfloat")
    bundled = elf_files(site / "narrowfloat.libs")
    for library in BUNDLED:
        assert any(path.name.startswith(library) for path in bundled), f"{library} is missing"
    inside = {path.name for path in bundled}
    for path in package + bundled:
        if path.name == ONEDNN_MODULE:
            continue
        assert needed(path) <= SYSTEM | inside, path.name
        assert not any(name.startswith(NEVER) for name in needed(path) | {path.name}), path.name


def test_its_files() -> None:
    with zipfile.ZipFile(WHEEL) as wheel:
        names = wheel.namelist()
    folders = {name.split("/")[0] for name in names}
    assert {re.sub(r"-[0-9.]+\.(dist-info|data)$", r".\1", name) for name in folders} == {
        "narrowfloat",
        "narrowfloat_cli",
        "narrowfloat.data",
        "narrowfloat.dist-info",
        "narrowfloat.libs",
    }
    assert "narrowfloat/py.typed" in names and "narrowfloat/_core.pyi" in names
    assert not [name for name in names if name.endswith((".a", ".h", ".cmake"))]
