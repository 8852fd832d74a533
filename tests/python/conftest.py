# SPDX-License-Identifier: Apache-2.0
import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests labelled `large` run when asked for."""
    if os.environ.get("NF_LARGE_TESTS") == "1":
        return
    skip = pytest.mark.skip(reason="needs gigabytes of memory; run with NF_LARGE_TESTS=1")
    for item in items:
        if "large" in item.keywords:
            item.add_marker(skip)
