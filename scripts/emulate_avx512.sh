#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# emulate_avx512.sh [COMMAND...]: runs tests of build/release on an emulated CPU that has AVX-512,
# in a Linux guest under Bochs. Without a COMMAND, runs all lines of tests/emulated/commands.txt.
# Fails unless each test passes. NF_EMULATED_BUILD is the path of another build, NF_EMULATED_SECONDS
# the limit of the emulator's CPU time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"
cd "$(dirname "$0")/.."

build=${NF_EMULATED_BUILD:-build/release}
limit=${NF_EMULATED_SECONDS:-7200}
kernel_package=linux-image-cloud-amd64
work=build/emulated guest=tests/emulated
root=$work/root iso=$work/iso serial=$work/serial.log

commands=("$@")
(($# > 0)) || mapfile -t commands < <(grep -v '^#' "$guest/commands.txt")

# Unpacks the kernel from its package; installs nothing.
fetch_kernel() {
  local package
  package=$(apt-cache depends "$kernel_package" | sed -n 's/^ *Depends: \(linux-image-[0-9]\)/\1/p')
  [[ -n $package ]] || die "avx512: apt knows no $kernel_package; after apt-get update it may"
  say "avx512: fetching $package"
  rm -rf "$work/kernel"
  mkdir -p "$work/kernel"
  (cd "$work/kernel" && apt-get download -qq "$package" && dpkg -x ./*.deb .) \
    >"$work/kernel.log" 2>&1 || { cat "$work/kernel.log" >&2; die "avx512: no kernel"; }
  mv "$work"/kernel/boot/vmlinuz-* "$work/vmlinuz"
  rm -rf "$work/kernel"
}

# Copies the programs of the commands, their libraries, and the records at the build's paths.
fill_root() {
  local command name program programs=() libraries source
  for command in narrowfloat "${commands[@]}"; do
    name=$(sed -E 's/^([A-Z_]+=[^ ]* +)*//; s/ .*//' <<<"$command")
    program=$(find "$build" -type f -executable -name "$name" | head -1)
    [[ -n $program ]] || die "avx512: $build has no program $name"
    programs+=("$program")
  done
  rm -rf "$root"
  mkdir -p "$root"/{bin,dev,proc,sys,tmp,tests}
  cp /bin/busybox "$root/bin/"
  cp "$guest/init" "$root/init"
  printf '%s\n' "${commands[@]}" >"$root/commands"
  for program in "${programs[@]}"; do
    strip -o "$root/tests/$(basename "$program")" "$program"
  done
  mapfile -t libraries < <(ldd "${programs[@]}" | grep -oE '/[^ ]+ \(0x' | sed 's/ .*//' | sort -u)
  cp -L --parents -t "$root" "${libraries[@]}"
  source=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt")
  cp -r --parents -t "$root" "$source/tests/golden"
}

make_iso() {
  rm -rf "$iso"
  mkdir -p "$iso/isolinux"
  (cd "$root" && find . | cpio -o -H newc --quiet) | lz4 -q -l -9 >"$iso/initrd"
  cp "$work/vmlinuz" "$iso/"
  cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$iso/isolinux/"
  cp "$guest/isolinux.cfg" "$iso/isolinux/"
  xorriso -as mkisofs -quiet -o "$work/guest.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat \
    -no-emul-boot -boot-load-size 4 -boot-info-table "$iso" 2>"$work/iso.log" ||
    { cat "$work/iso.log" >&2; die "avx512: no image"; }
}

# Debian's Bochs has a debugger: it waits for "continue", and only SIGKILL ends it. It shows the
# screen on a separate terminal, which must be read: a full terminal stops the emulator.
emulate() {
  local emulator screen
  rm -f "$work"/{bochs,emulator}.log
  : >"$serial"
  printf 'c\nq\n' >"$work/debugger"
  (
    cd "$work"
    ulimit -t "$limit"
    TERM=xterm exec bochs -q -f "../../$guest/bochsrc" -rc debugger </dev/null >emulator.log 2>&1
  ) &
  emulator=$!
  # shellcheck disable=SC2064
  trap "kill -KILL $emulator 2>/dev/null || true" EXIT
  until screen=$(grep -soaE '/dev/pts/[0-9]+' "$work/emulator.log"); do
    kill -0 "$emulator" 2>/dev/null || { cat "$work/emulator.log" >&2; die "avx512: no emulator"; }
    sleep 1
  done
  (stty -F "$screen" raw -echo && cat "$screen") >/dev/null 2>&1 &
  tail -n +1 -f --pid="$emulator" "$serial" 2>/dev/null |
    sed -un 's/\r$//; s/^@@ /avx512: /p' | while read -r line; do say "$line"; done
  wait "$emulator" || true  # its exit status means a panic, even after a poweroff
  trap - EXIT
}

mkdir -p "$work"
[[ -f $work/vmlinuz ]] || fetch_kernel
fill_root
make_iso
say "avx512: starting the guest (log: $serial)"
emulate

output=$(tr -d '\r' <"$serial")
failed=0
for command in "${commands[@]}"; do
  grep -qF "@@ passed: $command: " <<<"$output" || failed=1
done
# The tests skip instruction sets that the CPU lacks, so the CPU must have AVX-512.
grep -qE '^kernels +avx3_dl avx3 ' <<<"$output" || failed=1
((failed == 0)) || {
  tail -n 60 <<<"$output" >&2
  die "avx512: not every test passed on avx3 and avx3_dl; all output: $serial"
}
grep -E '^(kernels |@@ passed)' <<<"$output" | sed 's/^@@ //'
say "avx512: passed, ${#commands[@]} of ${#commands[@]}"
