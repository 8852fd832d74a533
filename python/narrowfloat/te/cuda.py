# SPDX-License-Identifier: Apache-2.0
"""Replaces torch.cuda in rewritten modules: the CPU acts as one GPU per process.

A call returns after its work is done, so streams and events never wait. Attributes that are missing
here come from torch.cuda, and return or raise as PyTorch does without a GPU.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch

from narrowfloat.te._settings import SETTINGS

CPU = torch.device("cpu")
# Later than every CUDA version that TransformerEngine's recipes require.
version = "13.0"


def __getattr__(name: str) -> object:
    """Returns torch.cuda's own attribute: an exception class, a tensor type and so on."""
    return getattr(torch.cuda, name)


def is_available() -> bool:
    """Returns True, so that programs continue."""
    return True


is_initialized = is_available


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns True: both generations support bfloat16."""
    return True


def device_count() -> int:
    """Returns the number of processes on this machine: each has one device."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def current_device() -> torch.device:
    """Returns the CPU. Callers use the result as a device."""
    return CPU


def get_device_capability(device: object = None) -> tuple[int, int]:
    """Returns the emulated generation."""
    return SETTINGS.generation


def get_device_name(device: object = None) -> str:
    """Returns the device's name for programs to print."""
    return "CPU (narrowfloat)"


def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def get_device_properties(device: object = None) -> SimpleNamespace:
    """Returns the emulated generation's number and this machine's processors and memory."""
    major, minor = get_device_capability()
    return SimpleNamespace(
        name=get_device_name(),
        major=major,
        minor=minor,
        multi_processor_count=os.cpu_count() or 1,
        total_memory=_total_memory(),
        warp_size=1,
    )


def mem_get_info(device: object = None) -> tuple[int, int]:
    """Returns the free and the total memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"), _total_memory()


def memory_allocated(device: object = None) -> int:
    """Returns 0: PyTorch does not count the memory of the CPU."""
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated
memory_cached = max_memory_cached = memory_allocated


def memory_stats(device: object = None) -> defaultdict[str, int]:
    """Returns counters of memory, all 0 as in memory_allocated()."""
    return defaultdict(int)


def memory_summary(device: object = None, abbreviated: bool = False) -> str:
    """Returns the reason why there are no counters, instead of their table."""
    return "narrowfloat.te: PyTorch does not count the memory of the CPU"


def _nothing(*args: Any, **named: Any) -> None:
    """Does nothing: the CPU has no such cache or queue."""


synchronize = set_device = empty_cache = ipc_collect = _lazy_init = _nothing
reset_peak_memory_stats = reset_max_memory_allocated = init = _nothing
reset_accumulated_memory_stats = reset_max_memory_cached = _nothing


class _Submodule:
    """Replaces a submodule of torch.cuda, `theirs`.

    Attributes are searched in `own`, then in this module, then in `theirs`. Errors: AttributeError
    for names outside of `own` that PyTorch's submodule lacks.
    """

    def __init__(self, theirs: ModuleType, **own: object) -> None:
        self._theirs = theirs
        vars(self).update(own)

    def __getattr__(self, name: str) -> object:
        theirs = getattr(self._theirs, name)
        return globals().get(name, theirs)


memory = _Submodule(torch.cuda.memory)
graphs = _Submodule(torch.cuda.graphs)
streams = _Submodule(torch.cuda.streams)


def _no(*args: Any, **named: Any) -> bool:
    """Returns False."""
    return False


is_current_stream_capturing = can_device_access_peer = is_graph_capturing = _no


def _lazy_call(function: Callable[[], object], **named: Any) -> None:
    function()


# Random numbers come from the CPU's generator.


def manual_seed(seed: int) -> None:
    """Seeds the CPU's generator."""
    torch.manual_seed(seed)


manual_seed_all = manual_seed
initial_seed = torch.initial_seed


def seed() -> None:
    """Seeds the CPU's generator with a random number."""
    torch.seed()


seed_all = seed


def get_rng_state(device: object = None) -> torch.Tensor:
    """Returns the state of the CPU's generator."""
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: object = None) -> None:
    """Sets the state of the CPU's generator."""
    torch.set_rng_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the state of the only generator."""
    return [torch.get_rng_state()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the state of the only generator."""
    torch.set_rng_state(next(iter(new_states)))


class _Generators:
    """The sequence of default generators: the CPU's for every index."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: object) -> torch.Generator:
        return torch.default_generator

    def __iter__(self) -> Iterator[torch.Generator]:
        return iter((torch.default_generator,))


default_generators = _Generators()
random = _Submodule(torch.cuda.random)


class Event:
    """Measures the time of the host: work is done before record() is called."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self._seconds: float | None = None

    def record(self, stream: object = None) -> None:
        """Records the current time."""
        self._seconds = time.perf_counter()

    def elapsed_time(self, end: "Event") -> float:
        """Returns the milliseconds until another event. Requires: both are recorded."""
        if self._seconds is None or end._seconds is None:
            raise RuntimeError("elapsed_time: both events must be recorded")
        milliseconds_per_second = 1e3
        return (end._seconds - self._seconds) * milliseconds_per_second

    def query(self) -> bool:
        """Returns True: the work is done."""
        return True

    wait = synchronize = _nothing


class Stream:
    """Has no effect on order: work on the CPU runs in the program's order."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.device = CPU
        self.cuda_stream = self.stream_id = 0
        self._before: list[Stream] = []  # streams before each __enter__()

    def record_event(self, event: Event | None = None) -> Event:
        """Records the event and returns it."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Returns True: the work is done."""
        return True

    def __enter__(self) -> "Stream":
        self._before.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *error: object) -> None:
        set_stream(self._before.pop())

    wait_stream = wait_event = synchronize = _nothing


ExternalStream = Stream
_DEFAULT_STREAM = Stream()


class _Thread(threading.local):
    """Holds the current stream of a thread. Python calls __init__() once in each thread."""

    def __init__(self) -> None:
        self.stream = _DEFAULT_STREAM


_THREAD = _Thread()


def default_stream(device: object = None) -> Stream:
    """Returns the stream that is current until the program sets another."""
    return _DEFAULT_STREAM


def current_stream(device: object = None) -> Stream:
    """Returns the thread's current stream."""
    return _THREAD.stream


def set_stream(stream: Stream | None) -> None:
    """Makes a stream the thread's current one; None changes nothing."""
    if stream is not None:
        _THREAD.stream = stream


class device(AbstractContextManager):
    """Selects the only device: changes nothing."""

    def __init__(self, device: object = None) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


device_of = device


class StreamContext(AbstractContextManager):
    """Makes a stream the current one; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self._before = current_stream()
        set_stream(self.stream)

    def __exit__(self, *error: object) -> None:
        set_stream(self._before)


stream = StreamContext


def use_mem_pool(*args: Any, **named: Any) -> AbstractContextManager:
    """Returns a context that changes nothing."""
    return nullcontext()


class _Range(AbstractContextManager, ContextDecorator):
    """Replaces a range for a profiler: does nothing."""

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def _range_start(msg: str) -> int:
    """Returns a number for range_end()."""
    return 0


nvtx = _Submodule(
    torch.cuda.nvtx,
    range=_Range,
    range_push=_nothing,
    range_pop=_nothing,
    range_start=_range_start,
    range_end=_nothing,
    mark=_nothing,
    annotate=_Range,
)
profiler = _Submodule(torch.cuda.profiler, start=_nothing, stop=_nothing, profile=_Range)


class _Autocast(torch.amp.autocast):
    """Replaces torch.cuda.amp.autocast for operators of the CPU."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("cpu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class _GradScaler(torch.amp.GradScaler):
    """Replaces torch.cuda.amp.GradScaler for tensors on the CPU."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__("cpu", *args, **named)


_AUTOCAST_MODE = {
    "autocast": _Autocast,
    "custom_fwd": lambda *args, **named: torch.amp.custom_fwd(*args, device_type="cpu", **named),
    "custom_bwd": lambda *args, **named: torch.amp.custom_bwd(*args, device_type="cpu", **named),
}
amp = _Submodule(
    torch.cuda.amp,
    **_AUTOCAST_MODE,
    GradScaler=_GradScaler,
    autocast_mode=_Submodule(torch.cuda.amp.autocast_mode, **_AUTOCAST_MODE),
    grad_scaler=_Submodule(torch.cuda.amp.grad_scaler, GradScaler=_GradScaler),
)
FloatTensor, DoubleTensor, HalfTensor = torch.FloatTensor, torch.DoubleTensor, torch.HalfTensor
BFloat16Tensor, IntTensor, LongTensor = torch.BFloat16Tensor, torch.IntTensor, torch.LongTensor
ByteTensor, BoolTensor = torch.ByteTensor, torch.BoolTensor


def _refuse_graphs(*args: Any, **named: Any) -> NoReturn:
    """Raises NotImplementedError: a graph records the kernels of a GPU."""
    raise NotImplementedError("narrowfloat.te: CUDA graphs need a GPU")


def _refuse_pools(*args: Any, **named: Any) -> NoReturn:
    """Raises NotImplementedError: a pool divides the memory of a GPU."""
    raise NotImplementedError("narrowfloat.te: memory pools need a GPU")


class CUDAGraph:
    """Raises when constructed. A class, because programs call isinstance() with it."""

    __new__ = _refuse_graphs


class MemPool:
    """Raises when constructed. A class, because programs call isinstance() with it."""

    __new__ = _refuse_pools


graph = graph_pool_handle = make_graphed_callables = _refuse_graphs
