# SPDX-License-Identifier: Apache-2.0
"""Writes the stubs of the native module: nanobind's stubs, with typed options.

usage: core_stubs.py [FILE]      the default is python/narrowfloat/_core.pyi
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

STUBS = Path(__file__).parents[1] / "python" / "narrowfloat" / "_core.pyi"

# The class of narrowfloat._options for each verb; other verbs have the options of quantize.
OPTIONS = {
    **dict.fromkeys(
        ("dequantize", "qgemm", "grouped_qgemm", "hadamard_transform"), "ThreadOptions"
    ),
    **dict.fromkeys(("from_buffers", "empty", "plan_grouped", "make_spec"), "SpecOptions"),
}


def with_options(text: str) -> str:
    """Returns stubs whose `**options` have the types of narrowfloat._options."""

    def typed(found: re.Match[str]) -> str:
        options = OPTIONS.get(found["name"], "QuantizeOptions")
        return f"{found['head']}**options: Unpack[{options}]"

    text = re.sub(r"(?P<head>def (?P<name>\w+)\(.*)\*\*options: object", typed, text)
    names = sorted(set(OPTIONS.values()) | {"QuantizeOptions"})
    first = re.search(r"^(from|import) ", text, re.MULTILINE)
    assert first is not None
    imports = f"from typing import Unpack\n\nfrom narrowfloat._options import {', '.join(names)}\n"
    return text[: first.start()] + imports + text[first.start() :]


def generate(file: Path) -> None:
    """Writes the stubs of the installed module to a file."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "_core.pyi"
        command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "narrowfloat._core"]
        subprocess.run([*command, "-o", made], check=True)
        file.write_text(with_options(made.read_text()))


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else STUBS)
