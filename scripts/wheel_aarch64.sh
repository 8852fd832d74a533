#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cross-builds the wheel for aarch64, repairs it for manylinux, and runs the recorded cases on it under user-mode
# emulation. Needs the packages of packages-aarch64.txt. All files are in build/aarch64-wheel.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"
cd "$(dirname "$0")/.."

out=$PWD/build/aarch64-wheel
root=$out/python
python=$PWD/.venv/bin/python
version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
mkdir -p "$out/packages" "$root" "$out/site"

# Debian's interpreter for arm64 cannot be installed beside the machine's own, so it is unpacked.
if [[ ! -x $root/usr/bin/python$version ]]; then
  say "aarch64: unpacking Python $version into ${root#"$PWD"/}"
  (
    cd "$out/packages"
    apt-get download -qq "python$version-minimal:arm64" "libpython$version-minimal:arm64" \
      "libpython$version-stdlib:arm64" "libpython$version-dev:arm64" \
      {libbz2-1.0,libexpat1,libffi8,liblzma5,libssl3,zlib1g}:arm64
  ) || die "aarch64: apt has no Python $version for arm64, which .venv has; it must be Debian's version"
  for package in "$out"/packages/*.deb; do dpkg -x "$package" "$root"; done
  # Python.h includes the architecture's pyconfig.h from its parent folder, which is not an include folder here.
  ln -s ../aarch64-linux-gnu "$root/usr/include/python$version/"
fi

say "aarch64: cross-building the wheel (${out#"$PWD"/}/build.log)"
rm -rf "$out"/{built,repaired,site}
(
  # The platform and the suffix of modules for the wheel, instead of the build machine's.
  export _PYTHON_HOST_PLATFORM=linux-aarch64
  export SETUPTOOLS_EXT_SUFFIX=.cpython-${version/./}-aarch64-linux-gnu.so
  export CMAKE_TOOLCHAIN_FILE=$PWD/cmake/aarch64-linux-gnu.cmake
  unset CXX
  quietly "$out/build.log" "$python" -m pip wheel --verbose --disable-pip-version-check --no-deps \
    --no-build-isolation -Cbuild-dir='build/wheel-{wheel_tag}' -Ccmake.define.NF_WERROR=ON \
    -Ccmake.define.Python_INCLUDE_DIR="$root/usr/include/python$version" -w "$out/built" .
)
# For a foreign platform, auditwheel selects the platform tag itself, from the libraries.
PATH=$PWD/.venv/bin:$PATH .venv/bin/auditwheel repair --plat auto \
  --exclude 'libdnnl.so.*' --exclude 'libgomp.so.*' -w "$out/repaired" "$out"/built/*.whl

say "aarch64: installing the wheel, NumPy and ml_dtypes for aarch64 into ${out#"$PWD"/}/site"
repaired=$(ls "$out"/repaired/*.whl)
"$python" -m pip install --quiet --disable-pip-version-check --no-warn-conflicts --target "$out/site" \
  --python-version "$version" --only-binary=:all: --platform "$(sed 's/.*-\(.*\)\.whl/\1/' <<<"$repaired")" \
  --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 "$repaired" pytest

say "aarch64: running the command line and the recorded cases under qemu"
# oneTBB's workers do not wake up under this emulator, so the cases run on one thread.
export NF_NUM_THREADS=1
qemu-aarch64 "$out/site/narrowfloat/bin/narrowfloat" schemes
exec qemu-aarch64 -E PYTHONHOME="$root/usr" -E PYTHONPATH="$out/site" \
  -E LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu:$root/lib/aarch64-linux-gnu" \
  "$root/usr/bin/python$version" -m pytest -q -ra -p no:cacheprovider --noconftest \
  tests/python/test_golden.py tests/python/test_golden_gemm.py
