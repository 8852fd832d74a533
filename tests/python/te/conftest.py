# SPDX-License-Identifier: Apache-2.0
"""Runs programs in separate processes, with a package that looks like TransformerEngine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lookalike import PACKAGE, Run, write


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Returns a folder of packages that contains the look-alike."""
    folder = tmp_path / "site"
    write(folder, PACKAGE)
    return folder


def runner(tmp_path: Path, *packages: Path) -> Run:
    """Returns a function that runs Python in tmp_path, with further folders of packages."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NVTE_", "NF_TE_")) and name != "PYTHONDONTWRITEBYTECODE"
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        [*map(str, packages), os.environ.get("PYTHONPATH", "")]
    )
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")

    def run_python(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=900,
        )

    return run_python


@pytest.fixture
def run(site: Path, tmp_path: Path) -> Run:
    """Returns a function that runs Python in tmp_path, where it imports the look-alike."""
    return runner(tmp_path, site)


@pytest.fixture
def run_alone(tmp_path: Path) -> Run:
    """Returns a function that runs Python in tmp_path, with TransformerEngine itself."""
    return runner(tmp_path)
