# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios on several processes of one machine, and kills the processes at a time limit.

A scenario is a function without arguments. Each rank runs all scenarios(world) of a module, up to
the first that fails. `python ranks.py MODULE RANK WORLD PORT OUT` is one rank; run_ranks() starts
all ranks.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_S = 150  # time limit of one launch
COLLECTIVE_S = 30  # time limit of one collective


def free_port() -> int:
    """Returns a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _stop(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def run_ranks(
    module: str, world: int, out: Path, limit_s: float = LIMIT_S, **environment: str
) -> list[dict[str, str]]:
    """Returns the result of each scenario on each rank: "ok", or the traceback. Kills ranks that
    still run after `limit_s`."""
    port = str(free_port())
    logs = [open(out / f"log.{rank}", "wb") for rank in range(world)]
    processes: list[subprocess.Popen] = []
    try:
        for rank in range(world):
            command = [sys.executable, __file__, module, str(rank), str(world), port, str(out)]
            processes.append(
                subprocess.Popen(
                    command,
                    stdout=logs[rank],
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                )
            )
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and any(p.poll() is None for p in processes):
            time.sleep(0.05)
    finally:
        _stop(processes)
        for log in logs:
            log.close()
    return [_told(out, rank, processes[rank].returncode) for rank in range(world)]


def _told(out: Path, rank: int, status: int) -> dict[str, str]:
    path = out / f"result.{rank}"
    results = json.loads(path.read_text()) if path.exists() else {}
    if status != 0:
        log = (out / f"log.{rank}").read_text(errors="replace")[-4000:]
        results["exit"] = f"rank {rank} ended with {status}: {log}"
    return results


def require_ok(results: list[dict[str, str]], scenario: str) -> None:
    """Asserts that every rank ran a scenario to its end."""
    for rank, told in enumerate(results):
        others = "\n".join(f"{name}: {text}" for name, text in told.items() if text != "ok")
        assert told.get(scenario) == "ok", f"rank {rank} {told.get(scenario, others)}"


def _write(path: Path, results: dict[str, str]) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(results))
    new.rename(path)


def _run_rank(module: str, rank: int, world: int, port: str, out: Path) -> int:
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group(
        "gloo", rank=rank, world_size=world, timeout=timedelta(seconds=COLLECTIVE_S)
    )
    results: dict[str, str] = {}
    for name, scenario in importlib.import_module(module).scenarios(world).items():
        begin = time.monotonic()
        try:
            scenario()
            results[name] = "ok"
        except Exception:
            results[name] = traceback.format_exc()
        _write(out / f"result.{rank}", results)
        if os.environ.get("NF_TEST_TIMES"):
            print(f"{time.monotonic() - begin:6.2f} s {name}", flush=True)
        if results[name] != "ok":
            return 1  # collectives of the other ranks raise when this one ends
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]
    name, rank, world, port, out = sys.argv[1:]
    os.environ["NF_TEST_OUT"] = out
    status = _run_rank(name, int(rank), int(world), port, Path(out))
    sys.stdout.flush()
    os._exit(status)
