#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the C++ tests, then the Python tests, even if the first have failed. Fails if any test fails.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"
cd "$(dirname "$0")/.."

status=0
say "C++ tests: ctest in build/release"
ctest --test-dir build/release --parallel "$(nproc)" --output-on-failure --no-tests=error ||
  status=$?
say "Python tests: tests/python/debug"
# In a separate process: the host of the debug features has one session and feature set per process.
.venv/bin/python -m pytest -q -ra tests/python/debug || status=$?
say "Python tests: tests/python and tests/docs"
scripts/pytest.sh tests/python tests/docs --ignore=tests/python/debug || status=$?
exit "$status"
