#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# system.sh LIST...: installs the Debian or Ubuntu packages of the lists that are missing, PACKAGE:arm64
# from Debian's arm64. Does not use the network if nothing is missing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"

mapfile -t wanted < <(sed -e 's/[[:space:]]*#.*//' -e '/^[[:space:]]*$/d' "$@")

command -v dpkg-query >/dev/null ||
  die "setup: packages are installed with apt, which this system lacks; needed are what" \
    "scripts/packages.txt names, then run make again with NF_SYSTEM=ready"

native=$(dpkg --print-architecture)
missing=()
for package in "${wanted[@]}"; do
  architecture=$native
  [[ $package != *:* ]] || architecture=${package#*:}
  # dpkg lists a name without an architecture once per installed architecture.
  dpkg-query -W -f '${Architecture}:${db:Status-Status}\n' "$package" 2>/dev/null |
    grep -Eqx "(all|$architecture):installed" || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  say "system packages: all ${#wanted[@]} are there"
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null ||
    die "setup: packages are missing and there is neither root nor sudo; an administrator can run:" \
      "apt-get install ${missing[*]}"
  as_root=(sudo)
fi
say "system packages: installing ${missing[*]}"
[[ " ${missing[*]} " != *:arm64* ]] || "${as_root[@]}" dpkg --add-architecture arm64
"${as_root[@]}" apt-get update -qq </dev/null
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null
