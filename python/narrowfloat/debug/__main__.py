# SPDX-License-Identifier: Apache-2.0
"""python -m narrowfloat.debug check CONFIG.yaml [--layers FILE] [--json]"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

# Characters that move the cursor or change the direction of the text after them, except line feeds.
# The program `narrowfloat` escapes the same ones.
_STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Exit(IntEnum):
    """The exit codes of the process, which docs/cli.md lists for all commands."""

    FINE = 0
    FINDING = 1
    BAD_INPUT = 2
    UNSUPPORTED = 3
    FAILURE = 4
    PIPE_CLOSED = 141  # as of a program that SIGPIPE ends


class Failure(Exception):
    """Ends the command with an error. kind: the name of the error in JSON."""

    def __init__(self, code: Exit, kind: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


class _Parser(argparse.ArgumentParser):
    """A parser that raises Failure for wrong arguments."""

    def error(self, message: str) -> NoReturn:
        raise Failure(Exit.BAD_INPUT, "Usage", f"{self.prog}: {message}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m narrowfloat.debug",
        description="Looks at configurations of debug features.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="says what is wrong in a configuration, and what it will do",
        description="Exits with 0 if nothing is wrong, 1 if something is.",
        allow_abbrev=False,
    )
    check.add_argument("config", type=Path, metavar="CONFIG.yaml")
    check.add_argument(
        "--layers", type=Path, metavar="FILE", help="names of all layers of the model, one per line"
    )
    check.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def _check(options: argparse.Namespace) -> tuple[Exit, dict[str, Any], str]:
    """Returns the exit code, the report as JSON and the report as text."""
    try:
        from narrowfloat.debug import _check, _config_file
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    try:
        config, repeated = _config_file.read_config(options.config)
        layers = None if options.layers is None else _config_file.read_layers(options.layers)
        report = _check.check(config, layers)
    except _config_file.BadFile as error:
        raise Failure(Exit.BAD_INPUT, "InvalidArgument", f"check: {error}") from None
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    except OSError as error:
        raise Failure(Exit.FAILURE, "IoError", f"check: {error}") from None
    for message in reversed(repeated):
        report.problems.insert(0, _check.Problem("file", message))
    code = Exit.FINDING if report.problems else Exit.FINE
    return code, {"config": str(options.config), **report.as_json()}, _check.text(report)


def _missing(error: ModuleNotFoundError) -> Failure:
    return Failure(
        Exit.UNSUPPORTED,
        "Unsupported",
        f"check: {error.name} is not installed: pip install narrowfloat[debug]",
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; results go to standard output, errors to standard error."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    try:
        code, report, text = _check(_parser().parse_args(arguments))
    except Failure as failure:
        code = failure.code
        print(f"narrowfloat: {_escaped(str(failure))}", file=sys.stderr)
        report = {"error": {"kind": failure.kind, "message": str(failure)}}
        text = ""
    if as_json:
        text = json.dumps({**report, "exit_code": int(code)}, indent=1)
    return int(_print(_escaped(text)) or code)


def _escaped(text: str) -> str:
    """Escapes control characters and direction marks, which names in files may contain."""
    return _STEERING.sub(
        lambda found: (r"\x{:02x}" if found[0] < "\u0100" else r"\u{:04x}").format(ord(found[0])),
        text,
    )


def _print(text: str) -> Exit | None:
    """Prints to standard output. Returns the exit code if that fails."""
    if not text:
        return None
    try:
        if sys.stdout is None:  # closed before the program began
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        print(text, flush=True)
    except OSError as error:
        if sys.stdout is not None:  # Python flushes it again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return Exit.PIPE_CLOSED
        print(f"narrowfloat: check: standard output, {error.strerror}", file=sys.stderr)
        return Exit.FAILURE
    return None


if __name__ == "__main__":
    sys.exit(main())
