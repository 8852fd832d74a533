# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: functions that print messages.

# One line on what happens next.
say() { printf '==> %s\n' "$*" >&2; }

# The reason, and the end.
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# quietly LOG COMMAND...: keeps what the command says in LOG, shows only ninja's progress; all of it
# if the command fails.
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if ! "$@" 2>&1 | tee "$log" | sed -nu 's/^ *\(\[[0-9]*\/[0-9]*\] .*\)/\1/p' >&2; then
    cat "$log" >&2
    return 1
  fi
}
