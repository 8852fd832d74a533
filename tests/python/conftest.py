# SPDX-License-Identifier: Apache-2.0
import os
import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """A shell without job control starts what runs in the background with SIGINT ignored, and
    programs hand that on to those they start."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests labelled `large` run when asked for."""
    if os.environ.get("NF_LARGE_TESTS") == "1":
        return
    skip = pytest.mark.skip(reason="needs gigabytes of memory; run with NF_LARGE_TESTS=1")
    for item in items:
        if item.get_closest_marker("large"):
            item.add_marker(skip)
