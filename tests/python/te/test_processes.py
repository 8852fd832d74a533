# SPDX-License-Identifier: Apache-2.0
"""Tests processes that a rewritten program starts, and the objects that they send."""

from pathlib import Path

import pytest
from lookalike import Run, write

# The test imports multiprocessing before narrowfloat.te runs, with another main module.
SPAWNING = """
    '''Starts processes.'''
    import multiprocessing
    import sys
    from concurrent.futures import ProcessPoolExecutor
    import torch
    import beside
    import transformer_engine.pytorch as te

    class Answer:
        def __init__(self, value):
            self.value = value

    def work(x):
        devices = torch.zeros(1, device="cuda").is_cuda, beside.device(), te.device()
        return Answer((*devices, x, torch.cuda.get_device_capability(), sys.argv, __doc__))

    def work_in_a_child(x):
        with ProcessPoolExecutor(1, multiprocessing.get_context(sys.argv[1])) as pool:
            return pool.submit(work, x).result()

    def main():
        with ProcessPoolExecutor(1, multiprocessing.get_context(sys.argv[1])) as pool:
            for function in work, work_in_a_child:
                answer = pool.submit(function, Answer("cuda")).result()
                *rest, x, capability, words, doc = answer.value
                print(type(answer) is type(x) is Answer, *rest, x.value, capability, words, doc)

    if __name__ == "__main__":
        main()
    """
BESIDE = """
    import torch
    def device():
        return torch.ones(1).cuda(0).device
    """


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_of_multiprocessing_run_the_rewritten_script(
    run: Run, tmp_path: Path, method: str
) -> None:
    write(tmp_path, {"for_cuda/train.py": SPAWNING, "for_cuda/beside.py": BESIDE})
    words = "--as", "9.0", "for_cuda/train.py", method, "nccl"
    done = run(
        "-c",
        f"import multiprocessing, sys, runpy; sys.argv = ['', *{words}]; "
        "sys.path.insert(0, ''); runpy.run_module('narrowfloat.te', run_name='__main__')",
    )
    expected = "True True cpu cpu cpu (9, 0) ['for_cuda/train.py', {!r}, 'gloo'] Starts processes."
    assert done.stdout.splitlines() == [expected.format(method)] * 2, done.stderr


def test_a_launcher_finds_the_program_by_its_name(run: Run, tmp_path: Path) -> None:
    """Starts `python -m NAME` by the main module's name, as launchers such as Lightning's do."""
    write(
        tmp_path,
        {
            "for_cuda/train.py": """
                import os, subprocess, sys
                import beside
                print(__name__, os.path.basename(__file__), beside.device(), sys.argv[1:], __doc__)
                if "RANK" not in os.environ:
                    command = [sys.executable, "-m", __spec__.name, *sys.argv[1:]]
                    subprocess.run(command, env=dict(os.environ, RANK="1"), check=True)
                """,
            "for_cuda/beside.py": BESIDE,
        },
    )
    done = run("-u", "-m", "narrowfloat.te", "for_cuda/train.py", "cuda", PYTHONUNBUFFERED="1")
    assert done.stdout.splitlines() == ["__main__ train.py cpu ['cpu'] None"] * 2, done.stderr


def test_a_script_is_not_part_of_a_package(run: Run, tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "from . import cuda"})
    done = run("-m", "narrowfloat.te", "train.py")
    assert "ImportError: attempted relative import with no known parent package" in done.stderr


@pytest.mark.parametrize("start", [["train.py"], ["-m", "train"]])
def test_processes_of_a_program_that_imports_the_module_itself(
    run: Run, tmp_path: Path, start: list[str]
) -> None:
    program = """
        import multiprocessing
        import narrowfloat.te
        import transformer_engine.pytorch as te
        def work(queue):
            queue.put((__name__, te.device()))
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            context.Process(target=work, args=(queue,)).start()
            print(queue.get(timeout=60))
        """
    write(tmp_path, {"train.py": program})
    done = run(*start)
    assert done.stdout == "('__mp_main__', 'cpu')\n", done.stderr
