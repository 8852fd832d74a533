#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel and installs it into .venv, so that .venv/bin/python imports narrowfloat and
# .venv/bin/narrowfloat runs. ccache provides the objects of other builds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"
cd "$(dirname "$0")/.."

out=build/wheel-out
say "wheel: building (build/wheel.log)"
rm -rf "$out"
# Same depth as build/release, and same warnings: the objects are equal, so that ccache has them.
quietly build/wheel.log .venv/bin/python -m pip wheel --verbose --disable-pip-version-check \
  --no-deps --no-build-isolation -Cbuild-dir='build/wheel-{wheel_tag}' \
  -Ccmake.define.NF_WERROR=ON -w "$out" .
say "wheel: installing $(basename "$out"/*.whl) into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
  "$out"/*.whl
