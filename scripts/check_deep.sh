#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_deep.sh [PART...]: runs the long checks, also after one has failed, and prints a table.
# Fails if any part has failed. A part that this machine cannot run prints the reason.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"
cd "$(dirname "$0")/.."

parts=(format types docs tidy clang asan tsan fuzz cuda wheel browser oldest owners te avx512 aarch64)
skipped=77  # exit status of a part that cannot run here, as automake has it
fuzz_seconds=${NF_FUZZ_SECONDS:-60}
logs=build/check-deep

part_format() { scripts/format.sh; }

# Checks the types of the Python package, by the settings in pyproject.toml, and of users' calls.
part_types() { .venv/bin/python -m mypy && .venv/bin/python -m mypy tests/types/calls_of_users.py; }

# Builds the API reference and the guides; a warning is an error.
part_docs() {
  command -v doxygen >/dev/null || { say "docs: doxygen is not installed"; return "$skipped"; }
  scripts/wheel.sh && scripts/docs.sh
}

# Does not compile sources. Configuring writes version.h and the compile command of each source.
part_tidy() {
  mkdir -p build/tidy
  say "tidy: configuring preset tidy (build/tidy/configure.log)"
  cmake --preset tidy >build/tidy/configure.log 2>&1 || { cat build/tidy/configure.log; return 1; }
  .venv/bin/python scripts/tidy.py build/tidy
}

part_clang() { scripts/build.sh clang && ctest --preset clang --no-tests=error; }

# The test preset of a sanitizer selects the tests that run under it.
part_asan() { scripts/build.sh asan && ctest --preset asan --no-tests=error; }

part_tsan() {
  scripts/build.sh tsan environment_test && ctest --preset tsan --no-tests=error
}

part_fuzz() {
  scripts/build.sh fuzz 'fuzz_*' || return 1
  local target name status=0 count=0
  while read -r target; do
    name=$(basename "$target")
    say "fuzz: $name for $fuzz_seconds s"
    mkdir -p "build/fuzz/corpus/$name"
    # New inputs are written to the first folder, the build's; committed inputs are only read.
    "$target" -max_total_time="$fuzz_seconds" -timeout=10 -rss_limit_mb=4096 \
      -print_final_stats=1 -artifact_prefix="build/fuzz/$name-" \
      "build/fuzz/corpus/$name" "tests/fuzz/corpus/${name#fuzz_}" || status=1
    count=$((count + 1))
  done < <(find build/fuzz -type f -executable -name 'fuzz_*' | sort)
  ((count > 0)) || { say "fuzz: the build has no program fuzz_*"; return 1; }
  return "$status"
}

part_cuda() {
  local nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
  [[ -x $nvcc ]] || { say "cuda: no nvcc on this machine"; return "$skipped"; }
  # Without a device the tests are skipped.
  CUDACXX=$nvcc scripts/build.sh cuda gpu_tests && ctest --preset cuda --no-tests=error
}

part_wheel() {
  local platform=manylinux_2_36_x86_64 out=build/wheel-repaired here
  # A wheel for an older glibc cannot be built on a newer one.
  here=$(getconf GNU_LIBC_VERSION | sed 's/.* //')
  [[ $(printf '%s\n' "$here" 2.36 | sort -V | tail -1) == 2.36 ]] ||
    { say "wheel: this glibc is $here, wheels are made on 2.36"; return "$skipped"; }
  scripts/wheel.sh || return 1
  rm -rf "$out"
  say "wheel: repairing for $platform"
  PATH=$PWD/.venv/bin:$PATH .venv/bin/auditwheel repair --plat "$platform" \
    --exclude 'libdnnl.so.*' --exclude 'libgomp.so.*' -w "$out" \
    build/wheel-out/*.whl || return 1
  NF_WHEEL=$(ls "$PWD/$out"/*.whl) .venv/bin/python -m pytest -q -ra tests/python/test_wheel.py
}

# Tests pages in a browser; `make test` skips these tests if no browser is installed.
part_browser() {
  command -v chromium chromium-browser google-chrome >/dev/null ||
    { say "browser: neither Chromium nor Chrome is installed"; return "$skipped"; }
  .venv/bin/python -m pytest -q -ra tests/python/test_report_browser.py
}

# Tests the wheel's extras in a separate environment, with the oldest allowed version of each package.
# Only the extras' packages have lower bounds; their dependencies are the newest that fit.
part_oldest() {
  local python=build/oldest/venv/bin/python constraints=build/oldest/constraints.txt wheel
  mkdir -p build/oldest
  .venv/bin/python scripts/oldest.py >"$constraints" || return 1
  scripts/wheel.sh || return 1
  wheel=$(ls build/wheel-out/*.whl)
  "$python" -c '' 2>/dev/null || .venv/bin/python -m venv --clear build/oldest/venv || return 1
  say "oldest: installing $(tr '\n' ' ' <"$constraints")into build/oldest/venv"
  "$python" -m pip install --quiet --disable-pip-version-check --constraint "$constraints" \
    "$wheel[torch,jax,debug,test]" || return 1
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
    "$wheel" || return 1
  "$python" -m pytest -q -ra tests/python/pytorch tests/python/jax
}

# Tests with the libraries that own the conventions of checkpoints, in a separate environment.
part_owners() {
  local python=build/owners/venv/bin/python wheel
  mkdir -p build/owners
  scripts/wheel.sh || return 1
  wheel=$(ls build/wheel-out/*.whl)
  "$python" -c '' 2>/dev/null || .venv/bin/python -m venv --clear build/owners/venv || return 1
  say "owners: installing scripts/owners.txt into build/owners/venv"
  "$python" -m pip install --quiet --disable-pip-version-check \
    -r scripts/owners.txt "$wheel[transformers,test]" || return 1
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
    "$wheel" || return 1
  "$python" -m pytest -q -ra tests/python/owners tests/python/test_compressed_tensors.py
}

# Tests every supported release of TransformerEngine, including the newest of the range.
part_te() {
  local oldest newest release folder status=0
  local bounds='s/^OLDEST, NEWEST = \(2, ([0-9]+)\), \(2, ([0-9]+)\)$/\1 \2/p'
  read -r oldest newest < <(sed -nE "$bounds" python/narrowfloat/te/_host.py) || return 1
  for release in $(seq -f '2.%g' "$oldest" "$newest"); do
    folder="$PWD/build/te/$release"
    say "te: installing transformer_engine $release into $folder"
    rm -rf "$folder"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
      --target "$folder" "transformer_engine~=$release.0" || return 1
    PYTHONPATH="$folder" .venv/bin/python -m pytest -q -ra tests/python/te || status=$?
  done
  return "$status"
}

part_avx512() {
  [[ $(uname -m) == x86_64 ]] || { say "avx512: this is no x86-64 machine"; return "$skipped"; }
  ! grep -qw avx512_vbmi2 /proc/cpuinfo ||
    { say "avx512: this machine has it, so make test is the check"; return "$skipped"; }
  apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1 ||
    { say "avx512: apt knows no linux-image-cloud-amd64 for the guest"; return "$skipped"; }
  scripts/build.sh release && scripts/emulate_avx512.sh
}

# Runs the C++ tests of the test preset aarch64 under an emulator, then the wheel's tests. It has no tests of the
# host, and none that take hours.
part_aarch64() {
  [[ $(. /etc/os-release && echo "$ID") == debian ]] ||
    { say "aarch64: the cross compiler's libraries are Debian's arm64 packages"; return "$skipped"; }
  scripts/system.sh scripts/packages-aarch64.txt || return 1
  env -u CXX scripts/build.sh aarch64 && ctest --preset aarch64 --no-tests=error &&
    scripts/wheel_aarch64.sh
}

run_part() {
  local part=$1 status start=$SECONDS
  say "check-deep: $part (log: $logs/$part.log)"
  "part_$part" 2>&1 | tee "$logs/$part.log"
  status=${PIPESTATUS[0]}
  case $status in
    0) outcome=passed ;;
    "$skipped") outcome="skipped: $(tail -1 "$logs/$part.log" | sed 's/^==> //')" ;;
    *) outcome=FAILED failed=1 ;;
  esac
  summary+=$(printf '%-8s %5d s  %s' "$part" $((SECONDS - start)) "$outcome")$'\n'
}

if [[ ${1:-} == --list ]]; then
  echo "${parts[*]}"
  exit 0
fi
chosen=("$@")
(($# > 0)) || chosen=("${parts[@]}")
for part in "${chosen[@]}"; do
  [[ " ${parts[*]} " == *" $part "* ]] ||
    die "check-deep: there is no part '$part', there are: ${parts[*]}"
done
mkdir -p "$logs"
summary='' failed=0
for part in "${chosen[@]}"; do run_part "$part"; done
printf '\n%s' "$summary"
exit "$failed"
