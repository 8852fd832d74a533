#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks a change before a commit: format, lint, the dependencies between folders, the quick tests of C++ and Python.
# Runs the C++ tests with the label `quick`, built for this machine's best instruction set in build/dev.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"
cd "$(dirname "$0")/.."

# Python tests of the core and of PyTorch's tensors; `make test` also runs JAX, TransformerEngine and the guides.
python_tests=(tests/python/test_*.py tests/python/pytorch)

status=0
scripts/format.sh || status=1
scripts/build.sh dev quick_tests
say "C++ tests: label quick in build/dev"
ctest --test-dir build/dev -L quick --parallel "$(nproc)" --output-on-failure --no-tests=error || status=1
say "Python tests: ${python_tests[*]}, without those marked slow"
scripts/pytest.sh -m 'not slow' "${python_tests[@]}" || status=1
exit "$status"
