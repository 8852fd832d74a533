#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Creates .venv in the repository's root, or updates it to requirements.txt and
# requirements-alone.txt.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "setup: $python must be Python 3.11 or later, got $("$python" -V 2>&1); set PYTHON"

# Ends the script if a first installation does not fit: it takes 6.5 GB, most of it PyTorch's CUDA
# libraries, and pip unpacks 3 GB in the temporary folder. Includes the size of an interrupted .venv.
require_space() {
  local needed=7 free
  [[ $(stat -c %d .) != $(stat -c %d "${TMPDIR:-/tmp}") ]] || needed=10
  free=$(df --output=avail --block-size=1M . | tail -n 1)
  free=$(((free + $(du -s --block-size=1M .venv | cut -f 1)) / 1000))
  ((free >= needed)) ||
    die "setup: free disk space for .venv must be at least $needed GB, got $free GB in $PWD"
}

# An environment does not start if another interpreter made it, or its interpreter is missing.
if ! .venv/bin/python -c '' 2>/dev/null; then
  say "python: creating .venv with $("$python" -V)"
  rm -rf .venv
  "$python" -m venv .venv
fi

stamp=.venv/requirements.stamp
lists=(scripts/requirements.txt scripts/requirements-alone.txt)
wanted=$({ .venv/bin/python -V && cat "${lists[@]}"; } | sha256sum)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
  say "python: .venv is up to date"
else
  [[ -f $stamp ]] || require_space
  say "python: installing ${lists[*]} into .venv"
  .venv/bin/python -m pip install --quiet --upgrade --disable-pip-version-check \
    -r "${lists[0]}"
  .venv/bin/python -m pip install --quiet --upgrade --disable-pip-version-check --no-deps \
    -r "${lists[1]}"
  printf '%s\n' "$wanted" >"$stamp"
fi
