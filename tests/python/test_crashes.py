# SPDX-License-Identifier: Apache-2.0
"""Kills conversions and fills their disk: files stay whole, and the next run finishes."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import time
from pathlib import Path

from cli import folder_bytes, obey_modes, program, run, sharded

MOMENTS = 200
LIMIT_S = 100  # the limit of a busy machine; an idle one needs 15 s for all moments


def visible(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not Path(name).name.startswith(".")}


def command(source: Path, out: Path) -> list[object]:
    return ["quantize", source, out, "--scheme", "nvfp4", "--overwrite", "--threads", 1]


def seconds_of_a_run(source: Path, out: Path) -> float:
    began = time.monotonic()
    run(*command(source, out))
    return time.monotonic() - began


def test_killed_at_any_moment_old_files_stay_whole_and_the_rerun_finishes(tmp_path: Path) -> None:
    source = sharded(tmp_path / "in")
    before = folder_bytes(source)
    run("quantize", source, tmp_path / "old", "--scheme", "mxfp8_e4m3")
    took = seconds_of_a_run(source, tmp_path / "new")
    old, new = folder_bytes(tmp_path / "old"), folder_bytes(tmp_path / "new")
    dice = random.Random(20260)
    began, killed, unfinished = time.monotonic(), 0, 0
    out = tmp_path / "out"
    for moment in range(MOMENTS):
        if time.monotonic() - began > LIMIT_S:
            break
        shutil.copytree(tmp_path / "old", out)
        process = subprocess.Popen(
            [program(), *map(str, command(source, out))],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(dice.uniform(0, 1.1 * took))
        process.kill()
        killed += process.wait() == -9
        for name, data in visible(folder_bytes(out)).items():
            assert data in (old[name], new[name]), f"{name} at moment {moment}"
        unfinished += folder_bytes(out) not in (old, new)
        took = seconds_of_a_run(source, out)  # again, as other work slows a machine
        assert folder_bytes(out) == new, f"moment {moment}"
        shutil.rmtree(out)
    assert folder_bytes(source) == before
    assert moment >= MOMENTS // 4, f"{moment} moments in {LIMIT_S} s"
    assert killed > moment // 4 and unfinished > 0, "the moments must lie within the run"


def test_a_disk_that_fills_up_leaves_whole_files_and_the_rerun_finishes(tmp_path: Path) -> None:
    source, out = sharded(tmp_path / "in"), tmp_path / "out"
    run("quantize", source, out, "--scheme", "mxfp8_e4m3")
    old = folder_bytes(out)
    run(*command(source, tmp_path / "new"))
    new = folder_bytes(tmp_path / "new")
    largest = max(map(len, new.values()))

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1, largest - 1))

    message = run(*command(source, out), code=4, preexec_fn=fill).stderr
    assert "write: " in message
    assert visible(folder_bytes(out)) == old
    assert not [name for name in folder_bytes(out) if name.endswith(".partial")]
    run(*command(source, out))
    assert folder_bytes(out) == new


def test_a_folder_that_cannot_be_written_stays_as_it_is(tmp_path: Path) -> None:
    source, out = sharded(tmp_path / "in"), tmp_path / "out"
    run("quantize", source, out, "--scheme", "mxfp8_e4m3")
    old = folder_bytes(out)
    os.chmod(out, 0o555)
    for target in (out, out / "below"):
        message = run(*command(source, target), code=4, preexec_fn=obey_modes).stderr
        assert "Permission denied" in message
    os.chmod(out, 0o755)
    assert folder_bytes(out) == old
