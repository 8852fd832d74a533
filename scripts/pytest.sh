#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pytest.sh ARGUMENT...: runs pytest with one worker per core. A file's tests run on one worker: they share fixtures.
set -euo pipefail
cd "$(dirname "$0")/.."

# Workers share the cores: idle OpenMP threads must sleep, not spin.
export OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0
exec .venv/bin/python -m pytest -q -ra -n "$(nproc)" --dist loadfile "$@"
