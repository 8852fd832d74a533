# SPDX-License-Identifier: Apache-2.0
import os
import signal
from pathlib import Path

import pytest

# Files that compile graphs, start many programs or run over all codes. `make check` skips them.
SLOW = (
    "pytorch/distributed/*",
    "pytorch/test_compile_*",
    "pytorch/test_exit.py",
    "pytorch/test_export.py",
    "test_cli*.py",
    "test_crashes.py",
    "test_demo.py",
    "test_exhaustive.py",
    "test_wheel.py",
)


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """Sets Python's handler of SIGINT if SIGINT is ignored. A shell without job control starts
    background programs with SIGINT ignored, and child programs inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks slow files; skips tests marked `large` unless NF_LARGE_TESTS is 1."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder):
            path = item.path.relative_to(folder)
            if any(path.match(pattern) for pattern in SLOW):
                item.add_marker("slow")
    if os.environ.get("NF_LARGE_TESTS") == "1":
        return
    skip = pytest.mark.skip(reason="needs gigabytes of memory; run with NF_LARGE_TESTS=1")
    for item in items:
        if item.get_closest_marker("large"):
            item.add_marker(skip)
