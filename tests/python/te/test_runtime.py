# SPDX-License-Identifier: Apache-2.0
"""Tests functions that rewritten modules call in place of PyTorch's."""

from io import BytesIO
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from narrowfloat.pytorch import _slow_products
from narrowfloat.pytorch.tex import gemm
from narrowfloat.te import cuda, runtime
from narrowfloat.te.triton.grouped_dbias_dscales import (
    compute_grouped_dbias,
    compute_grouped_dbias_dscales,
)

HALF = torch.float16


@pytest.fixture
def te() -> ModuleType:
    """Returns TransformerEngine's own classes."""
    return pytest.importorskip(
        "transformer_engine.pytorch", reason="TransformerEngine is not installed"
    )


def operands(dtype: torch.dtype) -> list[torch.Tensor]:
    """Returns a term, (4, 20, 30), and the factors of a product of its shape."""
    torch.manual_seed(5)
    shapes = (4, 20, 30), (4, 20, 64), (4, 64, 30)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
@pytest.mark.parametrize("name", ["bmm", "baddbmm"])
def test_slow_batched_products_and_their_gradients_are_rounded_once(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "SLOW_DTYPES", frozenset({dtype}))
    given = operands(dtype)[1:] if name == "bmm" else operands(dtype)
    options = {} if name == "bmm" else {"beta": 0.5, "alpha": 0.25}
    made = getattr(runtime, name)(*given, **options)
    wide = [each.detach().float().requires_grad_() for each in given]
    want = getattr(torch, name)(*wide, **options)
    assert made.dtype == dtype and torch.equal(made, want.to(dtype))
    dy = torch.randn(made.shape).to(dtype)
    found = torch.autograd.grad(made, given, dy)
    expected = torch.autograd.grad(want, wide, dy.float())
    for gradient, exact in zip(found, expected, strict=True):
        assert torch.equal(gradient, exact.to(dtype))


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
def test_layers_multiply_slow_dtypes_in_float32(
    te: ModuleType, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm, "SLOW_DTYPES", frozenset({dtype}))
    torch.manual_seed(6)
    layer = te.Linear(64, 48, bias=False, params_dtype=dtype)
    x = torch.randn(16, 64).to(dtype)
    y = layer(x)
    assert y.dtype == dtype
    assert torch.equal(y, (x.float() @ layer.weight.detach().float().t()).to(dtype))


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
def test_layers_leave_products_of_few_tokens_to_pytorch(
    te: ModuleType, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    multiply = gemm.multiply

    def record(a: torch.Tensor, b: torch.Tensor, *rest: Any) -> Any:
        seen.append((a.dtype, b.dtype))
        return multiply(a, b, *rest)

    monkeypatch.setattr(gemm, "SLOW_DTYPES", frozenset({dtype}))
    monkeypatch.setattr(gemm, "multiply", record)
    layer = te.Linear(64, 48, bias=False, params_dtype=dtype)
    for tokens, multiplied in ((0, dtype), (4, dtype), (5, torch.float32)):
        x = torch.randn(tokens, 64).to(dtype)
        with torch.no_grad():
            y = layer(x)
        exact = x.double() @ layer.weight.detach().double().t()
        assert seen.pop() == (multiplied, multiplied)
        # The sums' error, 64 * 2**-24 of sums below 64, and the result's rounding.
        torch.testing.assert_close(y.double(), exact, rtol=torch.finfo(dtype).eps, atol=2**-12)


def test_bfloat16_is_slow_without_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for machine, capability in (("x86_64", "AVX2"), ("x86_64", "AVX512"), ("aarch64", "DEFAULT")):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        monkeypatch.setattr(
            torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability
        )
        found[machine, capability] = _slow_products._slow_dtypes()
    assert found == {
        ("x86_64", "AVX2"): {HALF, torch.bfloat16},
        ("x86_64", "AVX512"): {HALF},
        ("aarch64", "DEFAULT"): {HALF},
    }


def test_other_batched_products_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "SLOW_DTYPES", frozenset({HALF}))
    _, a, b = operands(torch.bfloat16)
    assert torch.equal(runtime.bmm(a, b), torch.bmm(a, b))
    _, a, b = (each.detach() for each in operands(HALF))
    out = torch.empty(4, 20, 30, dtype=HALF)
    assert runtime.bmm(a, b, out=out) is out
    assert torch.equal(out, torch.bmm(a, b))
    assert torch.equal(runtime.bmm(input=a, mat2=b), out)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert runtime.bmm(a, b).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="must be a 3D tensor"):
        runtime.bmm(a[0], b)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("cuda", "cpu"),
        ("cuda:3", "cpu"),
        ("cuda_like", "cuda_like"),
        ("meta", "meta"),
        (2, "cpu"),
        (True, True),
        (None, None),
        (torch.device("cuda:1"), torch.device("cpu")),
        (torch.device("meta"), torch.device("meta")),
    ],
)
def test_a_device_that_is_known_at_run_time(given: object, want: object) -> None:
    assert runtime.place(given) == want


def test_the_module_of_a_device_is_the_stand_in() -> None:
    for device in (None, "cuda", "cuda:1", "cpu:0", torch.device("cuda:0"), torch.device("cpu")):
        assert runtime.get_device_module(device) is cuda
    assert runtime.get_device_module("mps") is torch.mps


class Own:
    """Has methods and a field with the names of tensors' methods and fields."""

    is_cuda = "field"

    def to(self, *args: object, **named: object) -> tuple:
        return "to", args, named

    cuda = pin_memory = record_stream = lambda self, *args: args


def test_methods_that_a_program_defines_are_called() -> None:
    assert runtime.to(Own(), 3, copy=True) == ("to", (3,), {"copy": True})
    assert runtime.to(Own(), "cuda:0", 1) == ("to", ("cpu", 1), {})
    assert runtime.move(Own(), 1) == runtime.pin_memory(Own(), 1) == (1,)
    assert runtime.record_stream(Own(), 1) == (1,)
    assert runtime.is_on_gpu(Own()) == "field"


def test_tensors_storages_and_modules_stay_on_the_cpu() -> None:
    x = torch.arange(3.0)
    for data in (x, x.untyped_storage()):
        assert runtime.move(data, 0) is not None and runtime.is_on_gpu(data) is True
        assert runtime.pin_memory(data) is data
        assert runtime.record_stream(data, None) is None
    assert runtime.to(x, 0) is runtime.to(x, "cuda") is runtime.move(x) is x
    assert runtime.to(x, torch.half).dtype == torch.half
    layer = torch.nn.Linear(2, 2)
    assert runtime.to(layer, 1) is runtime.move(layer, 1) is layer
    packed = torch.nn.utils.rnn.pack_sequence([x])
    assert runtime.is_on_gpu(packed) is True
    assert runtime.is_on_gpu(x.to("meta")) is False


def test_is_cuda_of_a_class_depends_on_whether_pytorch_reads_it(te: ModuleType) -> None:
    x = torch.ones(1)
    assert runtime.is_part_on_gpu(x, x) is False
    assert runtime.is_part_on_gpu(x, Own()) is True
    with te.quantized_model_init():
        weight = te.Linear(32, 32).weight
    assert weight.is_cuda is False and runtime.is_on_gpu(weight) is True
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.broadcast(weight, 0)
    finally:
        dist.destroy_process_group()


def test_empty_quantized_tensors_are_pinned_only_where_a_driver_is(te: ModuleType) -> None:
    tex = te.tensor.mxfp8_tensor.tex
    made = te.MXFP8Quantizer(tex.DType.kFloat8E4M3).make_empty((32, 32), pin_memory=True)
    assert made._rowwise_data.is_pinned() is torch.cuda.is_available()
    plain = tex.create_empty_quantized_tensor(None, (2, 3), torch.half, "cpu", True)
    assert plain.is_pinned() is torch.cuda.is_available()


def test_storages_that_a_program_moves_are_loaded() -> None:
    file = BytesIO()
    torch.save(torch.arange(3.0), file)
    file.seek(0)
    loaded = torch.load(file, map_location=lambda storage, place: runtime.move(storage, 0))
    assert torch.equal(loaded, torch.arange(3.0))


def test_names_within_texts_lists_and_mappings() -> None:
    assert runtime.contains("cuda", "cpu") and runtime.contains("cuda", "cuda:0")
    assert not runtime.contains("cuda", "meta")
    assert runtime.contains("cuda", iter(["meta", "cpu"]))
    assert runtime.contains("cuda", {"cuda": 1}) and not runtime.contains("cuda", {"cpu": 1})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"devices": [0]},
        {"devices": range(2)},
        {"devices": ["cuda"], "device_type": "cuda"},
        {"devices": [torch.device("cpu")], "device_type": "cpu"},
    ],
)
def test_the_generator_that_is_forked_is_the_cpus(given: dict[str, Any]) -> None:
    before = torch.get_rng_state()
    with runtime.fork_rng(**given):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with runtime.fork_rng(**given, enabled=False):
        torch.rand(3)
    assert not torch.equal(torch.get_rng_state(), before)


def product() -> torch.dtype:
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_autocast_of_cuda_is_float16() -> None:
    for device in ("cpu", "cuda"):
        with runtime.autocast(device):
            assert product() == runtime.get_autocast_dtype(device) == HALF
        with runtime.autocast(device_type=device, dtype=torch.bfloat16):
            with runtime.autocast(device):
                assert product() == runtime.get_autocast_dtype(device) == torch.bfloat16
        assert runtime.get_autocast_dtype(device) == HALF
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert runtime.get_autocast_dtype("xpu") == torch.get_autocast_dtype("xpu")


def test_autocast_takes_the_dtype_that_a_program_sets() -> None:
    try:
        runtime.set_autocast_dtype("cuda", torch.bfloat16)
        assert runtime.get_autocast_dtype("cuda") == torch.bfloat16
        with runtime.autocast("cuda"):
            assert product() == torch.bfloat16
    finally:
        runtime.set_autocast_dtype("cuda", HALF)
        torch.set_autocast_dtype("cpu", torch.bfloat16)


def test_functions_of_transformer_engine_are_compiled_only_if_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def theirs() -> None:
        pass

    def users() -> None:
        pass

    theirs.__module__ = "transformer_engine.debug.features"
    users.__module__ = "transformer_engine_user"
    monkeypatch.setattr(torch, "compile", lambda function: ("compiled", function))
    for setting, want in (("0", theirs), ("1", ("compiled", theirs))):
        monkeypatch.setenv("NVTE_TORCH_COMPILE", setting)
        assert runtime.compile(theirs) == want
        assert runtime.compile(users) == ("compiled", users)


def test_events_and_pools_of_a_gpu() -> None:
    for pair in (cuda.Event(), cuda.Event()), (recorded(), cuda.Event()):
        with pytest.raises(RuntimeError) as raised:
            pair[0].elapsed_time(pair[1])
        assert str(raised.value) == "elapsed_time: both events must be recorded"
    with pytest.raises(NotImplementedError) as refused:
        cuda.MemPool()
    assert str(refused.value) == "narrowfloat.te: memory pools need a GPU"


def test_counters_of_memory_are_0() -> None:
    for owner in (cuda, cuda.memory):
        assert owner.memory_stats()["allocated_bytes.all.current"] == owner.memory_cached() == 0
        assert owner.memory_summary(abbreviated=True) == (
            "narrowfloat.te: PyTorch does not count the memory of the CPU"
        )
        owner.reset_accumulated_memory_stats()
        owner.reset_max_memory_cached()


def recorded() -> cuda.Event:
    event = cuda.Event()
    event.record()
    return event


def test_sums_of_groups_are_float32() -> None:
    dy, offsets = torch.ones(4, 2), torch.tensor([0, 4])
    sums = torch.zeros(1, 2, dtype=HALF)
    with pytest.raises(TypeError) as raised:
        compute_grouped_dbias(dy, offsets, 1, sums)
    assert str(raised.value) == "compute_grouped_dbias: dbias must be float32, got torch.float16"
    assert not sums.any()


def test_kernels_of_jax_without_a_stand_in() -> None:
    native = pytest.importorskip(
        "narrowfloat.te.jax.native", reason="JAX is not installed", exc_type=ModuleNotFoundError
    )
    from narrowfloat.te.jax import products

    with pytest.raises(NotImplementedError) as raised:
        native.get_fused_attn_bwd_workspace_sizes(1)
    assert str(raised.value) == (
        "narrowfloat.te: get_fused_attn_bwd_workspace_sizes belongs to a kernel that needs a GPU"
    )
    gather = SimpleNamespace(is_none=False, name="ALL_GATHER")
    with pytest.raises(NotImplementedError) as raised:
        products.gemm(
            *[None] * 7,
            out_dtype=None,
            contracting_dims=((), ()),
            scaling_mode=None,
            collective_op=gather,
            narrowfloat_product_mode="",
        )
    assert str(raised.value) == (
        "narrowfloat.te: a product that communicates needs a GPU, got collective_op=ALL_GATHER"
    )


@pytest.mark.parametrize("name", ["dbias", "dscales"])
def test_errors_about_sums_name_the_function_that_was_called(name: str) -> None:
    sums = {"dbias": torch.zeros(1, 2), "dscales": torch.zeros(4)}
    sums[name] = sums[name].to(HALF)
    rows = torch.ones(4, 2), torch.ones(4), torch.ones(1, 2), torch.tensor([0, 4])
    with pytest.raises(TypeError) as raised:
        compute_grouped_dbias_dscales(*rows, **sums)
    assert str(raised.value) == (
        f"compute_grouped_dbias_dscales: {name} must be float32, got torch.float16"
    )
    assert not any(total.any() for total in sums.values())
