# SPDX-License-Identifier: Apache-2.0
"""Compares the manual page and the completions with the options that the parser accepts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cli import program, run, run_json, schemes

TABLE = run_json("manual")
COMMANDS = {command["name"]: command["options"] for command in TABLE["commands"]}
SHELLS = ("bash", "zsh", "fish")


def test_the_table_is_what_help_lists() -> None:
    listed = re.findall(r"^  ([a-z]+) {2,}", run("--help").stdout, re.MULTILINE)
    assert listed == list(COMMANDS)
    for command, options in COMMANDS.items():
        text = run(command, "--help").stdout
        assert all(name in text for option in options for name in option["names"]), command


def test_values_are_those_that_commands_accept() -> None:
    def choices(command: str, name: str) -> list[str]:
        (found,) = (o for o in COMMANDS[command] if name in o["names"])
        return found["choices"]

    assert choices("quantize", "--scheme") == [scheme["name"] for scheme in schemes()]
    for name in choices("convert", "--from"):
        refused = run("convert", "no", "o", "--to", "fp8", "--from", name, code=2).stderr
        assert "no, does not exist" in refused
    assert set(choices("convert", "--to")) < set(choices("convert", "--from"))
    assert choices("completion", "SHELL") == list(SHELLS)
    refused = run("dequantize", "a", "b", "--dtype", "f64", code=2).stderr
    assert "--dtype: f64 not in {bf16,f16,f32}" in refused
    assert choices("dequantize", "--dtype") == ["bf16", "f16", "f32"]


def test_the_manual_prints_without_a_warning(tmp_path: Path) -> None:
    page = run("manual").stdout
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-rLL=100n", "-P-c"],
        input=page,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    assert done.stderr == ""
    text = re.sub(r".\x08", "", done.stdout).replace("\u2010\n", "")
    for command, options in COMMANDS.items():
        assert f"narrowfloat {command}" in text
        assert all(option["names"][-1] in text for option in options)
    assert "\u2010\u2010" not in text, "options must have ASCII hyphens"
    for row in TABLE["exit_codes"]:
        assert re.search(rf"^ +{row['code']}\b", text, re.MULTILINE)


def completions(line: str, folder: Path) -> set[str]:
    """Returns bash's completions of the last word of `line`, files included."""
    script = """
source <("$1" completion bash)
read -ra COMP_WORDS <<< "$2"
[[ $2 == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
complete -p narrowfloat > /dev/null && _narrowfloat
printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", program(), line],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert completions("narrowfloat ", tmp_path) == set(COMMANDS) | {"--help", "--version"}
    assert completions("narrowfloat re", tmp_path) == {"report", "requantize"}
    for command, options in COMMANDS.items():
        names = {name for option in options for name in option["names"] if name[0] == "-"}
        assert completions(f"narrowfloat {command} -", tmp_path) == names
    assert completions("narrowfloat quantize a b --scheme mxfp8_e5", tmp_path) == {"mxfp8_e5m2"}
    assert completions("narrowfloat requantize --scale-format ", tmp_path) == {"ue8m0", "f32"}
    assert completions("narrowfloat completion ", tmp_path) == set(SHELLS)
    # We propose nothing, so that bash proposes files.
    assert completions("narrowfloat inspect mo", tmp_path) == set()
    assert completions("narrowfloat report a -o ", tmp_path) == set()


@pytest.mark.parametrize("shell", SHELLS)
def test_completions_are_valid_scripts(shell: str) -> None:
    script = run("completion", shell).stdout
    assert script == run_json("completion", shell)["script"]
    for name in {name for options in COMMANDS.values() for o in options for name in o["names"]}:
        spelled = re.sub("^--?", "-[ls] ", name) if shell == "fish" else re.escape(name)
        assert not name.startswith("-") or re.search(spelled + r"\b", script), name
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its script was searched, not run")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)
