# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: functions that print messages.

# Prints one line about the next step.
say() { printf '==> %s\n' "$*" >&2; }

# Prints the reason and ends the script.
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# quietly LOG COMMAND...: writes the command's output to LOG, and shows only ninja's progress, or all
# of the output if the command fails.
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if ! "$@" 2>&1 | tee "$log" | sed -nu 's/^ *\(\[[0-9]*\/[0-9]*\] .*\)/\1/p' >&2; then
    cat "$log" >&2
    return 1
  fi
}
