# SPDX-License-Identifier: Apache-2.0
"""Runs scripts and tests that were written for CUDA, by the runner and by pytest's plugin."""

from pathlib import Path

import pytest
from lookalike import Run, write

SCRIPT = """
    import sys
    import torch
    import beside
    import transformer_engine.pytorch as te
    x = torch.zeros(2, device="cuda")
    if __name__ == "__main__":
        print(x.is_cuda, beside.device(), te.device(), sys.argv[1:])
        assert x.type() == "torch.cuda.FloatTensor"
    """
BESIDE = """
    import torch
    def device():
        return torch.ones(1).cuda(0).device
    """


def test_a_script_and_what_lies_beside_it_run_on_the_cpu(run: Run, tmp_path: Path) -> None:
    write(tmp_path, {"for_cuda/train.py": SCRIPT, "for_cuda/beside.py": BESIDE})
    done = run("-m", "narrowfloat.te", "for_cuda/train.py", "--device=cuda:0", "nccl", "cudaX")
    assert done.stdout == "True cpu cpu ['--device=cpu', 'gloo', 'cudaX']\n", done.stderr


def test_explain_lists_every_rewrite_with_its_place(run: Run, tmp_path: Path) -> None:
    write(tmp_path, {"train.py": SCRIPT, "beside.py": BESIDE})
    words = "--device=cuda:0", "--out", "./cuda", "nccl"
    done = run("-m", "narrowfloat.te", "--explain", "train.py", *words)
    assert done.stdout.endswith("['--device=cpu', '--out', './cuda', 'gloo']\n")
    lines = done.stderr.splitlines()
    assert lines[:2] == ["argument:1: --device=cuda:0 -> --device=cpu", "argument:4: nccl -> gloo"]
    assert "train.py:6: 'cuda' -> 'cpu'" in lines
    assert "train.py:8: x.is_cuda -> __narrowfloat_te__.is_on_gpu(x)" in lines
    assert "train.py:9: 'torch.cuda.FloatTensor' -> 'torch.FloatTensor'" in lines
    assert any(
        line.endswith(
            "beside.py:4: torch.ones(1).cuda(0) -> __narrowfloat_te__.move(torch.ones(1), 0)"
        )
        for line in lines
    )


def test_a_further_package_is_rewritten_when_it_is_named(
    run: Run, site: Path, tmp_path: Path
) -> None:
    names = "def device():\n    return 'cuda'\n"
    write(site, {"far/__init__.py": "", "far/away.py": names, "farther.py": names})
    main = "import far.away, farther; print(far.away.device(), farther.device())"
    write(tmp_path / "for_cuda", {"a.py": main})
    assert run("-m", "narrowfloat.te", "--also", "far", "for_cuda/a.py").stdout == "cpu cuda\n"
    assert (
        run("-m", "narrowfloat.te", "for_cuda/a.py", NF_TE_ALSO="far,json").stdout == "cpu cuda\n"
    )


def test_an_error_of_a_script_shows_its_own_line(run: Run, tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "d = 'cuda'\n\nx = f'{d}'\nx.no_such()\n"})
    done = run("-m", "narrowfloat.te", "train.py")
    assert 'train.py", line 4' in done.stderr
    assert "x.no_such()" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope.py"], "SCRIPT must be a file that can be read, got nope.py"),
        (["."], "SCRIPT must be a file that can be read, got ."),
        (["--also", "far,nosuch", "train.py"], "--also must name packages that can be imported"),
        (
            ["--also", "far.nosuch", "train.py"],
            "--also must name packages that can be imported, got far.nosuch",
        ),
        (["--also", ".", "train.py"], "--also must name packages that can be imported, got ."),
    ],
)
def test_wrong_arguments_are_one_line(
    run: Run, site: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    write(site, {"far/__init__.py": ""})
    write(tmp_path, {"train.py": "print('ran')"})
    done = run("-m", "narrowfloat.te", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"python -m narrowfloat.te: error: {message}")


def test_packages_of_the_environment_must_be_there_unless_a_script_chose_them(
    run: Run, site: Path, tmp_path: Path
) -> None:
    write(site, {"far/__init__.py": ""})
    write(tmp_path, {"train.py": "print('ran')"})
    done = run("-m", "narrowfloat.te", "train.py", NF_TE_ALSO="far, nosuch")
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "python -m narrowfloat.te: error: NF_TE_ALSO must name packages that can be imported, "
        "got nosuch\n",
    )
    done = run("-m", "narrowfloat.te", "train.py", NF_TE_ALSO="nosuch", NF_TE_SCRIPT="a.py")
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_without_arguments_the_script_is_missing(run: Run) -> None:
    done = run("-m", "narrowfloat.te")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("the following arguments are required: SCRIPT")


OWN_METHODS = """
    import far
    import torch
    import transformer_engine

    class Module(torch.nn.Linear):
        moved = False

        @torch.no_grad()
        def cuda(self, device=None):
            self.moved = True
            return super().cuda(device)

    class Tensor(torch.Tensor):
        def cuda(self):
            return "moved", super().cuda()

        def pin_memory(self):
            return "pinned", super().pin_memory()

        def record_stream(self, stream):
            return "recorded", super().record_stream(stream)

    class Heir(Module):
        pass

    for module in Module(1, 1), Heir(1, 1), torch.nn.Sequential(Module(1, 1)):
        print(module.cuda(0) is module, getattr(module, "moved", None))
    x = torch.ones(1).as_subclass(Tensor)
    (moved, y), (pinned, z) = x.cuda(), x.pin_memory()
    print(moved, y.item(), pinned, z is x, *x.record_stream(torch.cuda.Stream()))
    print(type(far.Module(1, 1).cuda()).__module__)

    @torch.compile(backend="eager", fullgraph=True)
    def graph(x, layer):
        y = x.cuda().pin_memory()
        y.record_stream(None)
        return layer.cuda()(y).shape

    print(graph(torch.ones(1), torch.nn.Linear(1, 1)))
    """
# A module that is not rewritten, whose method needs a driver.
FAR = """
    import torch
    class Module(torch.nn.Linear):
        def cuda(self):
            return super().cuda()
    """


def test_methods_of_a_programs_own_modules_and_tensors_are_called(
    run: Run, site: Path, tmp_path: Path
) -> None:
    write(site, {"far.py": FAR})
    write(tmp_path, {"for_cuda/train.py": OWN_METHODS})
    done = run("-m", "narrowfloat.te", "for_cuda/train.py")
    assert done.stdout.splitlines() == [
        "True True",
        "True True",
        "True None",
        "moved 1.0 pinned True recorded None",
        "far",
        "torch.Size([1])",
    ], done.stderr


STAND_IN = """
    import threading
    import torch
    import transformer_engine
    from torch.cuda.amp.autocast_mode import custom_fwd
    from torch.cuda.amp.grad_scaler import GradScaler, OptState
    from torch.cuda.graphs import CUDAGraph
    from torch.cuda.streams import Event, Stream

    c = torch.cuda
    print(c.is_bf16_supported(including_emulation=False))
    c.set_rng_state(new_state=c.get_rng_state())
    c.set_rng_state_all(new_states=iter(c.get_rng_state_all()))
    c.random.seed(), c.random.seed_all()
    c.nvtx.range_end(c.nvtx.range_start("a"))
    print(c.profiler.DEFAULT_FLAGS is not None, c.amp.GradScaler is GradScaler, OptState.READY.name)
    print(c.amp.custom_fwd is custom_fwd, c.streams.Event is Event is c.Event, Stream is c.Stream)
    for name in "nvtx", "random", "memory", "amp":
        try:
            getattr(getattr(c, name), "no_such")
        except AttributeError as error:
            print(error)
    for make in CUDAGraph, c.graphs.CUDAGraph, c.graphs.graph_pool_handle:
        try:
            make()
        except NotImplementedError as error:
            print(error)

    s, t = Stream(), c.Stream()
    def current():
        now = c.current_stream()
        return {id(c.default_stream()): "default", id(s): "s", id(t): "t"}[id(now)]
    seen = [current()]
    with c.stream(s):
        seen.append(current())
        with t, s, c.StreamContext(None):
            seen.append(current())
            thread = threading.Thread(target=lambda: seen.append(current()))
            thread.start()
            thread.join()
        seen.append(current())
    seen.append(current())
    c.set_stream(t), c.set_stream(None)
    print(*seen, current())

    @torch.compile(backend="eager", fullgraph=True)
    def graph(x):
        c.current_stream().wait_stream(s)
        with c.stream(s):
            x = x + 1
        c.current_stream().synchronize()
        return x

    print(graph(torch.ones(1)).item(), graph(torch.ones(1)).item(), current())
    """


def test_the_stand_in_has_the_parameters_submodules_and_streams_of_pytorch(
    run: Run, tmp_path: Path
) -> None:
    write(tmp_path, {"train.py": STAND_IN})
    done = run("-m", "narrowfloat.te", "train.py")
    missing = "module 'torch.cuda.{}' has no attribute 'no_such'"
    assert done.stdout.splitlines() == [
        "True",
        "True True READY",
        "True True True",
        *(missing.format(name) for name in ("nvtx", "random", "memory", "amp")),
        *["narrowfloat.te: CUDA graphs need a GPU"] * 3,
        "default s s default s default t",
        "2.0 2.0 t",
    ], done.stderr


GPU_ARGUMENTS = """
    import functools
    import torch
    import torch.distributed as dist
    import transformer_engine
    from torch.nn.parallel import DistributedDataParallel as Parallel

    def own(pin_memory=None):
        return pin_memory

    class DDP:
        def __init__(self, device_ids, output_device=None):
            self.given = device_ids, output_device

        def barrier(self, device_ids):
            return device_ids

    class Heir(Parallel):
        def __init__(self, module, device_ids):
            super().__init__(module, device_ids=device_ids)

    flag = torch.cuda.is_available()
    options = dict(pin_memory=True)
    options.update(pin_memory=flag)
    print(own(pin_memory=True), own(**options), functools.partial(own, pin_memory=3)())
    print(DDP(device_ids=[3], output_device=3).given, DDP([1]).barrier(device_ids=[1]))
    x = torch.empty(3, pin_memory=flag)
    made = torch.empty_like(x, **options), x.new_empty(3, pin_memory=flag)
    made += torch.tensor([1.0], pin_memory=True), functools.partial(torch.ones, pin_memory=flag)(3)
    print(*(each.is_pinned() for each in made))
    store = dist.HashStore()
    device = torch.device("cuda:0")
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    dist.barrier(device_ids=[0])
    for kind in Parallel, Heir:
        print(kind(torch.nn.Linear(1, 1).cuda(), device_ids=[0]).device_ids)
    dist.destroy_process_group()

    @torch.compile(backend="eager", fullgraph=True)
    def graph(x):
        return x + torch.ones(1, pin_memory=True), own(pin_memory=True)

    print(graph(torch.ones(1)))
    """


def test_arguments_that_need_a_gpu_are_dropped_of_pytorchs_functions_alone(
    run: Run, tmp_path: Path
) -> None:
    write(tmp_path, {"train.py": GPU_ARGUMENTS})
    done = run("-m", "narrowfloat.te", "train.py")
    assert done.stdout.splitlines() == [
        "True True 3",
        "([3], 3) [1]",
        "False False False False",
        "None",
        "None",
        "(tensor([2.]), True)",
    ], done.stderr


AT_RUN_TIME = """
    import os
    from dataclasses import dataclass
    from typing import NamedTuple
    import torch
    import transformer_engine.pytorch
    from torch import autocast

    name = os.environ["DEVICE"]
    x = torch.zeros(2, 2, device=name)
    layer = torch.nn.Linear(2, 2, device=name).to(name)
    print(x.to(name).device, layer.weight.device, x.is_cuda, name, "cuda" in name)

    class Named(NamedTuple):
        is_cuda: bool

    @dataclass
    class Data:
        is_cuda: bool = True

    class Own:
        def to(self, n):
            return n

        def pin_memory(self):
            return "pinned"

    print(Named(True).is_cuda, Data().is_cuda, Own().to(3), Own().pin_memory())
    table = {"cuda": 1, "cpu": 2}
    print(table["cuda"], table[x.device.type], "cuda" in table, table.get("cuda"))
    with autocast("cuda"):
        print(layer(x).dtype, torch.get_autocast_dtype("cuda"))
    with autocast("cpu"):
        print(layer(x).dtype)

    @torch.compile
    def graph(x):
        with torch.autocast(device_type="cuda"):
            y = layer(x.to(name))
        return y.to(x.dtype) + torch.ones(2, device=name), y.is_cuda

    torch._dynamo.reset()
    print(torch.compile(graph._torchdynamo_orig_callable, backend="eager", fullgraph=True)(x)[1])
    print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    """


def test_devices_types_and_methods_that_are_known_at_run_time(run: Run, tmp_path: Path) -> None:
    write(tmp_path, {"train.py": AT_RUN_TIME})
    done = run("-m", "narrowfloat.te", "train.py", DEVICE="cuda:0")
    assert done.stdout.splitlines() == [
        "cpu cpu True cuda:0 True",
        "True True 3 pinned",
        "1 2 True 1",
        "torch.float16 torch.float16",
        "torch.bfloat16",
        "True",
        "1",
    ], done.stderr


TESTS = """
    import pytest
    import torch
    from helper import device

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_passes():
        assert device().type == "cuda"

    def test_fails():
        seven = torch.zeros(1, device="cuda") + 7
        assert seven == 8
    """


def test_tests_for_gpus_run_and_show_their_assertions(run: Run, tmp_path: Path) -> None:
    write(
        tmp_path, {"tests/test_gpu.py": TESTS, "tests/helper.py": BESIDE, "pytest.ini": "[pytest]"}
    )
    done = run("-m", "pytest", "-q", "-p", "narrowfloat.te.pytest", "tests")
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "assert tensor([7.]) == 8" in done.stdout
    plain = run("-m", "pytest", "-q", "tests")
    assert "1 failed, 1 skipped" in plain.stdout, "no rewritten code is left behind"


COMPILED = """
    import sys
    import torch
    import torch._dynamo
    from torch._dynamo.comptime import comptime

    torch._dynamo.config.error_on_nested_jit_trace = False

    @torch._dynamo.disable
    def traced():
        return torch.compiler.is_compiling()

    @torch.compiler.assume_constant_result
    def number():
        return 3

    assert traced() is False and number() == 3
    print("torch._dynamo" in sys.modules, comptime)

    @torch.compile(backend="eager")
    def step(x):
        inside = torch.compiler.is_compiling()
        return x + number(), inside, traced()

    print(step(torch.ones(1)))
    print(comptime is sys.modules["torch._dynamo.comptime"].comptime)
    print(sys.modules["torch._dynamo"].config.error_on_nested_jit_trace)

    try:
        torch.compile(lambda x: (x + 1, traced()), backend="eager", fullgraph=True)(torch.ones(1))
    except Exception as refused:
        print("torch.compiler.disable" in str(refused))
    """


def test_the_compiler_is_imported_when_it_is_used(run: Run, tmp_path: Path) -> None:
    write(tmp_path, {"train.py": COMPILED})
    done = run("-m", "narrowfloat.te", "train.py")
    expected = ["False None", "(tensor([4.]), True, False)", "True", "False", "True"]
    assert done.stdout.splitlines() == expected, done.stderr
