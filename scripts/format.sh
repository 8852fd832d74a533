#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# format.sh [--fix]: checks the format of C++ and Python, and Python with ruff. --fix corrects the files.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"
cd "$(dirname "$0")/.."

bin=.venv/bin
mapfile -t cpp < <(git ls-files --cached --others --exclude-standard \
  '*.h' '*.cc' '*.cu' '*.cuh' | while read -r file; do [[ -f $file ]] && echo "$file"; done)
python=(bench demo examples python scripts tests)

if [[ ${1:-} == --fix ]]; then
  say "format: rewriting ${#cpp[@]} C++ files and what ruff finds in ${python[*]}"
  "$bin/clang-format" -i "${cpp[@]}"
  "$bin/ruff" check --quiet --fix "${python[@]}"
  "$bin/ruff" format --quiet "${python[@]}"
  exit 0
fi

status=0
say "format: ${#cpp[@]} C++ files with $("$bin/clang-format" --version)"
"$bin/clang-format" --dry-run -Werror "${cpp[@]}" || status=1
say "format: Python in ${python[*]} with $("$bin/ruff" --version)"
"$bin/ruff" check "${python[@]}" || status=1
"$bin/ruff" format --check "${python[@]}" || status=1
exit "$status"
