#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build.sh PRESET [GLOB]: configures a preset of CMakePresets.json and builds it in build/PRESET: all
# targets, or the targets with names that match GLOB.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"
cd "$(dirname "$0")/.."

preset=$1
mkdir -p "build/$preset"
log=build/$preset/configure.log
say "C++: configuring preset $preset ($log)"
cmake --preset "$preset" >"$log" 2>&1 || {
  cat "$log" >&2
  die "build: preset $preset does not configure, see above"
}
targets=()
if [[ -n ${2:-} ]]; then
  while read -r name _; do
    # shellcheck disable=SC2053
    if [[ ${name%:} == $2 ]]; then targets+=("${name%:}"); fi
  done < <(cmake --build "build/$preset" --target help)
  ((${#targets[@]} > 0)) || die "build: preset $preset has no target that matches $2"
fi
say "C++: building ${targets[*]:-everything} in build/$preset"
cmake --build "build/$preset" ${targets[@]:+--target "${targets[@]}"}
