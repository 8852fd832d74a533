#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# try.sh FILE [SCHEME]: builds and tests one kernel. Builds the targets that depend on the file, for this machine's best
# instruction set, in build/dev, and runs the kernel's tests. Runs tests per scheme for SCHEME only (default: all).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"
cd "$(dirname "$0")/.."

usage="usage: make try K=<kernel file> [S=<scheme>], such as K=micro_kernels S=mxfp8_e4m3"
[[ -n ${1:-} ]] || die "try: $usage"
kernel=$(basename "${1%.*}")
kernel=${kernel%-inl}
scheme=${2:-}
[[ -n $(find narrowfloat/kernels/{scalar,cpu} narrowfloat/kernels/*.{h,cc} \
  \( -name "$kernel.cc" -o -name "$kernel.h" -o -name "$kernel-inl.h" \)) ]] ||
  die "try: $1 must be a .cc or .h file of narrowfloat/kernels, scalar/ or cpu/, got none of that name; $usage"

[[ -z $scheme ]] || grep -qsF "\"$scheme\"}," narrowfloat/schemes/registry.h ||
  die "try: S must be a scheme of narrowfloat/schemes, got '$scheme'"

# The programs that test a kernel; backend_* compare it with the reference.
case $kernel in
  gemm*) tests=(backend_gemm_test golden_gemm_test) ;;
  dequantize | decode*) tests=(decode_kernels_test backend_dequantize_test golden_dequantize_test) ;;
  item_kernels | tile_drivers | hadamard | exact_transform | amax)
    tests=(item_kernels_test exact_transform_test hadamard_test hadamard_amax_test dbias_test) ;;
  lookup | whole_driver) tests=(uniform_kernels_test backend_quantize_test) ;;
  *) tests=(pack_kernels_test backend_quantize_test) ;;
esac
tests+=(kernel_table_test kernel_unit_test micro_kernels_test drivers_test)

mkdir -p build/dev
[[ -f build/dev/build.ninja ]] || {
  say "try: configuring preset dev (build/dev/configure.log)"
  cmake --preset dev >build/dev/configure.log 2>&1 || { cat build/dev/configure.log >&2; exit 1; }
}
say "try: building ${tests[*]} in build/dev"
cmake --build build/dev --target "${tests[@]}"

# run_shards PROGRAM FILTER: runs one process per core, each with a share of the tests.
run_shards() {
  local program=$1 filter=$2 status=0 shard pids=() pid
  for ((shard = 0; shard < cores; ++shard)); do
    GTEST_TOTAL_SHARDS=$cores GTEST_SHARD_INDEX=$shard \
      "$program" --gtest_brief=1 --gtest_filter="$filter" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  return "$status"
}

cores=$(nproc)
status=0
for test in "${tests[@]}"; do
  program=$(find build/dev -name "$test" -type f -executable)
  filter='*'
  # Tests per scheme have its name: .../mxfp8_e4m3_bfloat16.
  if [[ -n $scheme && $test == backend_*quantize_test ]]; then
    filter="*/${scheme}_float*:*/${scheme}_bfloat*:*/${scheme}_rowwise*:*/${scheme}_columnwise*"
  fi
  say "try: $test, tests $filter"
  run_shards "$program" "$filter" || status=1
done
exit "$status"
