# SPDX-License-Identifier: Apache-2.0
"""Tests the command line on many files: shards, interruption, resuming, full disks, progress."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import stat
import struct
import subprocess
from pathlib import Path

import foreign_model
import numpy as np
import pytest
from cli import (
    TYPES,
    folder_bytes,
    obey_modes,
    program,
    read_file,
    run,
    run_json,
    sample,
    sharded,
    write_file,
    write_model,
)
from test_unfinished import strace


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def test_sharded_there_and_back(tmp_path: Path):
    source = sharded(tmp_path / "in")
    run("quantize", source, tmp_path / "q", "--scheme", "mxfp8_e5m2")
    shards = sorted(path.name for path in source.glob("*.safetensors"))
    assert sorted(path.name for path in (tmp_path / "q").glob("*.safetensors")) == shards
    pooling = "1_Pooling/config.json"
    assert (tmp_path / "q" / pooling).read_bytes() == (source / pooling).read_bytes()
    config = json.loads((source / "config.json").read_text())
    quantization = {"quant_method": "narrowfloat", "spec": "mxfp8_e5m2"}
    written = json.loads((tmp_path / "q" / "config.json").read_text())
    assert written == config | {"quantization_config": quantization}, "other loaders must refuse"
    index = json.loads((tmp_path / "q" / "model.safetensors.index.json").read_text())
    held = {name: read_file(tmp_path / "q" / name)[0] for name in shards}
    assert index["weight_map"] == {tensor: name for name in shards for tensor in held[name]}
    assert index["metadata"] == {
        "total_parameters": 9,
        "total_size": sum(array.nbytes for tensors in held.values() for array in tensors.values()),
    }
    result = run_json("dequantize", tmp_path / "q" / "model.safetensors.index.json", tmp_path / "b")
    assert (result["files"], result["tensors_dequantized"]) == (3, 9)
    assert json.loads((tmp_path / "b" / "config.json").read_text()) == config
    assert run_json("inspect", tmp_path / "b")["counts"] == run_json("inspect", source)["counts"]


def test_parts_make_the_same_bytes(tmp_path: Path):
    source = sharded(tmp_path / "in")
    args = ("--scheme", "mxfp8_e4m3")
    run("quantize", source, tmp_path / "whole", *args)
    second = run_json("quantize", source, tmp_path / "parts", *args, "--part", "2/2")
    assert not second["complete"]
    assert not (tmp_path / "parts" / "model.safetensors.index.json").exists()
    first = run_json("quantize", source, tmp_path / "parts", *args, "--part", "1/2")
    assert first["complete"] and first["files"] + second["files"] == 3
    assert folder_bytes(tmp_path / "parts") == folder_bytes(tmp_path / "whole")


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (1, 3, 2)])
def test_a_part_without_files_does_nothing_in_any_order(order: tuple[int, ...], tmp_path: Path):
    source, out = sharded(tmp_path / "in", shards=2), tmp_path / "q"
    args = ("quantize", source, out, "--scheme", "mxfp8_e4m3", "--part")
    for turn, part in enumerate(order):
        before = folder_bytes(out)
        result = run_json(*args, f"{part}/3")
        done = sum(other < 3 for other in order[: turn + 1])
        assert (result["files"], result["complete"]) == (int(part < 3), done == 2)
        assert part < 3 or folder_bytes(out) == before
        assert out.exists() == (done > 0)
    run("quantize", source, tmp_path / "whole", "--scheme", "mxfp8_e4m3")
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")


def test_a_part_without_files_does_not_take_another_result_for_its_own(tmp_path: Path):
    source, out = sharded(tmp_path / "in", shards=2), tmp_path / "q"
    run("quantize", source, out, "--scheme", "mxfp8_e5m2")
    for scheme, complete in (("mxfp8_e4m3", False), ("mxfp8_e5m2", True)):
        last = run_json("quantize", source, out, "--scheme", scheme, "--part", "3/3")
        assert last["complete"] == complete
    one = write_file(tmp_path / "one", sample(0))
    (tmp_path / "old").write_bytes(one.read_bytes())
    second = ("quantize", one, tmp_path / "old", "--scheme", "mxfp8_e4m3", "--part", "2/2")
    assert not run_json(*second)["complete"]


def test_names_of_the_result_that_collide_are_not_the_input_s_fault(tmp_path: Path):
    matrix = np.ones((32, 32), np.float32)
    model = write_file(tmp_path / "m", {"a.weight": matrix, "a.weight.rowwise_data": matrix[0]})
    refused = run("quantize", model, tmp_path / "q", "--scheme", "mxfp8_e4m3", code=2).stderr
    assert refused == (
        "narrowfloat: quantize: 'a.weight' and 'a.weight.rowwise_data' of IN must not become "
        "tensors of one name, got 'a.weight.rowwise_data' for both\n"
    )


def test_limits_of_the_result_are_not_the_input_s_fault(tmp_path: Path):
    weight = np.ones((2, 16), np.float32)
    many = write_file(tmp_path / "many", {f"{i}.weight": weight for i in range(30_000)})
    refused = run("quantize", many, tmp_path / "q", "--scheme", "nvfp4", code=2).stderr
    assert refused == (
        f"narrowfloat: safetensors: {tmp_path}/q: a file must have at most 100000 tensors, got "
        "more\n"
    )
    name = "a" * 1015 + ".weight"
    long = write_file(tmp_path / "long", {name: weight})
    refused = run("quantize", long, tmp_path / "q", "--scheme", "nvfp4", code=2).stderr
    assert refused.startswith(f"narrowfloat: safetensors: {tmp_path}/q: a name must have at most")
    assert not (tmp_path / "q").exists()


def with_index(folder: Path, shards: list[dict[str, np.ndarray]]) -> Path:
    folder.mkdir()
    weight_map = {}
    for i, tensors in enumerate(shards):
        write_file(folder / f"{i}.safetensors", tensors)
        weight_map |= dict.fromkeys(tensors, f"{i}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_a_header_too_large_for_readers_is_refused_before_the_first_file(tmp_path: Path):
    weight = np.ones((1, 32), TYPES["BF16"])
    shards = [{"a.weight": weight}, {f"{i:0600}.weight": weight for i in range(10_000)}]
    source, out = with_index(tmp_path / "in", shards), tmp_path / "out"
    refused = run("quantize", source, out, "--scheme", "mxfp8_e4m3", code=2).stderr
    assert refused == (
        f"narrowfloat: safetensors: {out}/1.safetensors: names, shapes and metadata must have at "
        "most 16777216 bytes, got more\n"
    )
    assert not out.exists()


def weights(shards: int, per_shard: int, digits: int) -> list[dict[str, np.ndarray]]:
    weight = np.ones((16, 32), TYPES["BF16"])
    return [
        {f"{shard}.{i:0{digits}}.weight": weight for i in range(per_shard)}
        for shard in range(shards)
    ]


@pytest.mark.slow
def test_an_index_too_large_for_readers_is_refused_before_the_first_file(tmp_path: Path):
    source, out = with_index(tmp_path / "in", weights(9, 3_900, 990)), tmp_path / "out"
    refused = run("quantize", source, out, "--scheme", "mxfp8_e4m3", code=2).stderr
    assert re.fullmatch(
        f"narrowfloat: index: {re.escape(str(out))}/model.safetensors.index.json: an index must "
        r"have at most 100000000 bytes, got 1\d{8}\n",
        refused,
    )
    assert not out.exists()


@pytest.mark.slow
def test_the_index_of_a_large_model_can_be_read(tmp_path: Path):
    source, out = with_index(tmp_path / "in", weights(6, 12_600, 1)), tmp_path / "out"
    run("quantize", source, out, "--scheme", "nvfp4:columnwise=1")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert len(index["weight_map"]) == 529_200
    assert len(run_json("inspect", out)["tensors"]) == 75_600


def scales_in_a_file_of_their_own(folder: Path) -> Path:
    plain = np.ones((4, 4), np.float32)
    shards = [
        {"a.weight": plain.astype(TYPES["F8_E4M3"])},
        {"a.weight_scale_inv": np.ones((1, 1), np.float32)},
        {"b.weight": plain},
    ]
    return foreign_model.write_model(folder, shards, foreign_model.method("fp8"))


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_file_without_tensors_is_not_written(parts: int, tmp_path: Path):
    source, out = scales_in_a_file_of_their_own(tmp_path / "in"), tmp_path / "out"
    written = []
    for number in range(1, parts + 1):
        result = run_json("dequantize", source, out, "--part", f"{number}/{parts}")
        assert result["complete"] == (sum(written) + result["files_written"] == 2)
        assert result["files"] == result["files_written"]
        written.append(result["files"])
    assert sum(written) == 2
    names = ["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"]
    assert sorted(os.listdir(out)) == ["config.json", *names, "model.safetensors.index.json"]
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == dict(zip(["a.weight", "b.weight"], names, strict=True))
    again = run_json("quantize", out, tmp_path / "again", "--scheme", "mxfp8_e4m3")
    assert again["left_out"] == []


def test_links_to_folders_are_named_as_left_out(tmp_path: Path):
    source = sharded(tmp_path / "in")
    (tmp_path / "elsewhere").mkdir()
    (source / "linked").symlink_to(tmp_path / "elsewhere")
    result = run_json("quantize", source, tmp_path / "q", "--scheme", "mxfp8_e4m3")
    assert result["left_out"] == [{"name": "linked/", "reason": "a symbolic link to a folder"}]


def test_an_unfinished_job_is_resumed_and_leaves_no_record(tmp_path: Path):
    source, out = sharded(tmp_path / "in", shards=4), tmp_path / "q"
    args = ("quantize", source, out, "--scheme")
    run(*args, "mxfp8_e4m3")
    expected = folder_bytes(out)
    assert not [name for name in expected if name.startswith(".")]
    shutil.rmtree(out)

    part = ("--part", "1/2")  # two of the four files; no process writes the others
    assert run_json(*args, "mxfp8_e4m3", *part)["files_written"] == 2
    (out / ".narrowfloat-1-0.partial").write_bytes(b"of a process that was killed")
    again = run_json(*args, "mxfp8_e4m3", *part)
    assert (again["files_written"], again["files_skipped"]) == (0, 2)
    done = sorted(out.glob("*.safetensors"))
    done[0].unlink()
    done[1].write_bytes(b"damaged")
    assert run_json(*args, "mxfp8_e4m3", *part)["files_written"] == 2
    anew = (*part, "--overwrite")
    assert run_json(*args, "mxfp8_e5m2", *anew)["files_written"] == 2, "another spec starts anew"
    os.utime(source / done[0].name, ns=(1, 1))
    assert run_json(*args, "mxfp8_e5m2", *anew)["files_written"] == 1, "so does another input"
    assert run_json(*args, "mxfp8_e4m3", "--overwrite")["files_written"] == 4
    assert folder_bytes(out) == expected


def test_files_of_others_are_not_replaced_without_overwrite(model: Path, tmp_path: Path):
    source, out = sharded(tmp_path / "in"), tmp_path / "out"
    args = ("quantize", source, out, "--scheme", "mxfp8_e4m3")
    for name in ("model-00002-of-00003.safetensors", "config.json", "model.safetensors.index.json"):
        out.mkdir()
        (out / name).write_bytes(b"precious")
        message = f"quantize: {out / name} exists, --overwrite is needed to replace it"
        assert run_json(*args, code=2)["error"]["message"] == message
        assert folder_bytes(out) == {name: b"precious"}
        run(*args, "--overwrite")
        assert (out / name).read_bytes() != b"precious"
        shutil.rmtree(out)
    run(*args)
    assert "exists, --overwrite" in run(*args, code=2).stderr, (
        "a finished folder is not ours to redo"
    )
    single = ("quantize", model, tmp_path / "q", "--scheme", "nvfp4", "--exclude", "*half*")
    run(*single)
    assert "exists, --overwrite" in run(*single, code=2).stderr
    run(*single, "--overwrite")


def test_swapping_in_and_out_keeps_the_original(tmp_path: Path):
    original, small = sharded(tmp_path / "orig"), tmp_path / "small"
    before = folder_bytes(original)
    run("quantize", original, small, "--scheme", "mxfp8_e4m3")
    message = run("quantize", small, original, "--scheme", "mxfp8_e4m3", code=2).stderr
    assert message == (
        f"narrowfloat: quantize: IN must be a float checkpoint, {small} is already quantized as "
        "'narrowfloat' (metadata of its tensors)\n"
    )
    assert "exists, --overwrite" in run("dequantize", small, original, code=2).stderr
    assert folder_bytes(original) == before


def refuses_to_replace(source: Path, out: Path, target: Path, file: Path) -> None:
    """Asserts that the job refuses, and that no file below their common folder changes."""
    before = folder_bytes(source.parent)
    for option in ((), ("--overwrite",)):
        refused = run_json("quantize", source, out, "--scheme", "mxfp8_e4m3", *option, code=2)
        assert refused["error"]["message"] == (
            f"quantize: OUT must not replace a file of IN, got {target}, which is {file}"
        )
        assert folder_bytes(source.parent) == before


def test_files_of_in_are_not_replaced_through_links(tmp_path: Path):
    source, out = sharded(tmp_path / "in"), tmp_path / "out"
    out.mkdir()
    name = "model-00002-of-00003.safetensors"
    (source / name).rename(out / name)
    (source / name).symlink_to(out / name)
    refuses_to_replace(source, out, out / name, source / name)
    (source / name).unlink()
    (out / name).rename(source / name)
    for side in ("config.json", "model.safetensors.index.json", "1_Pooling/config.json"):
        (out / side).parent.mkdir(exist_ok=True)
        (source / side).rename(out / side)
        (source / side).symlink_to(out / side)
        refuses_to_replace(source, out, out / side, source / side)
        (source / side).unlink()
        (out / side).rename(source / side)
    run("quantize", source, out, "--scheme", "mxfp8_e4m3")


def test_files_of_in_that_are_of_another_checkpoint_are_not_removed(tmp_path: Path):
    source, out = sharded(tmp_path / "in"), tmp_path / "out"
    out.mkdir()
    name, other = "model-00002-of-00003.safetensors", "model-00002-of-00004.safetensors"
    (source / name).rename(out / other)
    (source / name).symlink_to(out / other)
    command = ("quantize", source, out, "--scheme", "mxfp8_e4m3", "--overwrite")
    before = folder_bytes(tmp_path)
    assert run_json(*command, code=2)["error"]["message"] == (
        f"quantize: OUT must not replace a file of IN, got {out / other}, which is {source / name}"
    )
    assert folder_bytes(tmp_path) == before


def test_files_of_in_below_out_are_not_replaced(tmp_path: Path):
    source = sharded(tmp_path / "out" / "sub")
    (source / "sub").mkdir()
    (source / "sub" / "config.json").write_text('{"other": 1}')
    file = source / "config.json"
    refuses_to_replace(source, tmp_path / "out", file, file)
    (source / "sub" / "config.json").unlink()
    run("quantize", source, tmp_path / "out", "--scheme", "mxfp8_e4m3")


def test_what_cannot_be_read_is_named_before_anything_is_written(tmp_path: Path):
    source, out = sharded(tmp_path / "in"), tmp_path / "out"
    command = ("quantize", source, out, "--scheme", "mxfp8_e4m3")
    (source / "sub").mkdir()
    (source / "sub" / "text").write_text("x")
    for path in (source / "sub" / "text", source / "sub"):
        path.chmod(0)
        error = run_json(*command, code=4, preexec_fn=obey_modes)["error"]
        assert error == {"kind": "IoError", "message": f"read: {path}, Permission denied"}
        assert not out.exists()
        path.chmod(0o755)


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path):
    source, out = sharded(tmp_path / "in"), tmp_path / "out"
    out.mkdir()
    (out / "1_Pooling").write_text("x")
    message = run("quantize", source, out, "--scheme", "mxfp8_e4m3", code=4).stderr
    assert message.splitlines()[-1] == (f"narrowfloat: write: {out / '1_Pooling'}, Not a directory")


def test_side_files_keep_their_modes(tmp_path: Path):
    source, out = sharded(tmp_path / "in"), tmp_path / "out"
    (source / "run.sh").write_text("#!/bin/sh")
    (source / "run.sh").chmod(0o700)
    run("quantize", source, out, "--scheme", "mxfp8_e4m3")
    assert stat.S_IMODE((out / "run.sh").stat().st_mode) == 0o700


def test_a_private_file_stays_private(model: Path, tmp_path: Path):
    out = tmp_path / "out"
    out.touch(mode=0o600)
    run("quantize", model, out, "--scheme", "mxfp8_e4m3", "--overwrite")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_the_longest_file_names(tmp_path: Path):
    source, out = sharded(tmp_path / "in"), tmp_path / "out"
    index = source / "model.safetensors.index.json"
    for i, size in enumerate((250, 251, 255)):
        old, new = f"model-{i + 1:05}-of-00003.safetensors", "a" * (size - 12) + ".safetensors"
        (source / old).rename(source / new)
        index.write_text(index.read_text().replace(old, new))
    job = ("quantize", source, out, "--scheme", "mxfp8_e4m3")
    for i in (1, 2, 3):
        part = (*job, "--part", f"{i}/4")
        assert run_json(*part)["files_written"] == 1
        assert i == 3 or run_json(*part)["files_skipped"] == 1, "the record is found again"
    names = {path.name for path in source.iterdir()}
    assert {path.name for path in out.iterdir()} == names, "no record is left"


def test_more_files_than_the_soft_limit_allows(tmp_path: Path):
    source = sharded(tmp_path / "in", shards=70)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))

    assert run_json("inspect", source, preexec_fn=limit)


def test_without_other_threads_the_work_is_done_alone(tmp_path: Path):
    model = write_file(tmp_path / "m", {"a.weight": np.ones((1024, 2048), np.float32)})
    calls = "?clone,?clone3"
    fail = strace("-e", f"trace={calls}", "-e", f"inject={calls}:error=EAGAIN")
    job = ["quantize", model, tmp_path / "q", "--scheme", "nvfp4", "--threads", "2"]
    subprocess.run([*fail, program(), *job], check=True)
    run("quantize", model, tmp_path / "whole", "--scheme", "nvfp4")
    assert (tmp_path / "q").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_full_disk_leaves_the_old_file(model: Path, tmp_path: Path):
    out = tmp_path / "out"
    out.write_bytes(b"old")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    command = ("quantize", model, out, "--scheme", "mxfp8_e4m3", "--overwrite")
    error = run_json(*command, code=4, preexec_fn=limit)["error"]
    assert error == {"kind": "IoError", "message": f"write: {out}, File too large"}
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "out"]
    assert out.read_bytes() == b"old"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, number: int):
    size = 3 << 30  # of zeros, without a block on disk
    entry = {"dtype": "F32", "shape": [size // 4096, 1024], "data_offsets": [0, size]}
    small = {"dtype": "F32", "shape": [1, 1], "data_offsets": [size, size + 4]}
    text = json.dumps({"a.weight": entry, "b.weight": small}).encode()
    path = tmp_path / "m"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + size + 4)
    command = [program(), "quantize", path, tmp_path / "out", "--exclude", "a.*"]
    command += ["--scheme", "fp8_e4m3", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert "quantize: 3.22 GB to read" in job.stderr.readline()
        job.send_signal(number)
        out, _ = job.communicate(timeout=60)
    assert job.returncode == 130
    error = json.loads(out)["error"]
    assert error["kind"] == "Interrupted"
    assert error["message"] == (
        f"quantize: interrupted, 0 of 1 files done, nothing unfinished was left in {tmp_path}/out"
    )
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_before_the_job_begins_is_reported(tmp_path: Path, number: int):
    matrix = np.ones((32, 32), np.float32)
    names = [f"{i:03}" + "a" * 1000 + ".weight" for i in range(60)]
    source = write_file(tmp_path / "in.safetensors", dict.fromkeys(names, matrix))
    slow = ("--include", "re:((.*){40}){50}x")  # takes half a second for each name
    command = [program(), "quantize", source, tmp_path / "out", "--scheme", "fp8_e4m3", *slow]

    def end_by_signals() -> None:
        signal.signal(number, signal.SIG_DFL)  # a caller such as nohup may ignore it

    with subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, text=True, preexec_fn=end_by_signals
    ) as job:
        process, caught = Path(f"/proc/{job.pid}"), 0
        while not caught >> (number - 1) & 1:
            assert job.poll() is None
            if (
                process / "exe"
            ).readlink().name == "narrowfloat":  # not yet Python, which starts it
                status = (process / "status").read_text(encoding="utf-8")
                caught = int(status.split("SigCgt:")[1].split()[0], 16)
        job.send_signal(number)
        out, _ = job.communicate(timeout=60)
    assert job.returncode == 130
    assert json.loads(out) == {
        "error": {"kind": "Interrupted", "message": "interrupted"},
        "exit_code": 130,
    }
    assert os.listdir(tmp_path) == ["in.safetensors"]


def test_a_terminal_shows_a_bar(model: Path, tmp_path: Path):
    import pty

    controller, terminal = pty.openpty()
    command = ("quantize", model, tmp_path / "q", "--scheme", "mxfp8_e4m3")
    done = subprocess.run(
        [program(), *map(str, command)], stdout=subprocess.PIPE, stderr=terminal, timeout=60
    )
    os.close(terminal)
    shown = os.read(controller, 65536)
    os.close(controller)
    assert done.returncode == 0
    assert shown.endswith(b"\r\x1b[K"), "the bar is gone when the result is printed"
    assert b"\n" not in shown
