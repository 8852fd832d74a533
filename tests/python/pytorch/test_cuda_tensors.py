# SPDX-License-Identifier: Apache-2.0
"""Tests quantizers, quantized tensors and tex on CUDA tensors against the same calls on the CPU."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuda_cases import (
    DIRECTIONS,
    DTYPES,
    MARKS,
    ODD_SHAPES,
    QUANTIZERS,
    SHAPES,
    assert_on_cuda,
    assert_same,
    delayed,
    no_synchronization,
    on_host,
    outcome,
    quantize_on_both,
    sample_with_blocks,
    seed,
)
from families import E4M3, assert_same_buffers, buffers, sample
from narrowfloat.common.recipe import MXFP8BlockScaling
from narrowfloat.pytorch import tex
from narrowfloat.pytorch.cpp_extensions import general_gemm
from torch_golden import assert_tensor

from narrowfloat import pytorch as nfp

pytestmark = MARKS


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", QUANTIZERS)
def test_bytes_are_those_of_the_cpu(name: str, direction: str) -> None:
    for dtype in DTYPES:
        for shape in SHAPES + ODD_SHAPES:
            x = sample_with_blocks(*shape, dtype=dtype)
            both = quantize_on_both(QUANTIZERS[name], DIRECTIONS[direction], x)
            assert_same(*both, f"{name} {direction} {dtype} {shape}")


@pytest.mark.parametrize("name", QUANTIZERS)
def test_special_values(name: str) -> None:
    special = [float("inf"), float("-inf"), float("nan"), -0.0, 1e-45, -3e-39, 3.4e38, 65504.0]
    for count, value in enumerate(special):
        x = sample(128, 128).float()
        x[count::17, count::13] = value
        both = quantize_on_both(QUANTIZERS[name], (True, True), x)
        assert_same(*both, f"{name} with {value}")
        x = x.bfloat16()
        both = quantize_on_both(QUANTIZERS[name], (True, True), x)
        assert_same(*both, f"{name} with bfloat16 {value}")


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transpose": lambda x: x.t(),
    "rows": lambda x: x[32:96],
    "every other row": lambda x: x[::2],
    "columns": lambda x: x[:, 32:96],
    "every other column": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(64, -1),
    "stack": lambda x: x.view(2, 64, 128).transpose(0, 1),
    "stack of columns": lambda x: x.view(2, 64, 128)[:, :, 32:64],
    "unaligned": lambda x: x.reshape(-1)[1 : 1 + 64 * 64].view(64, 64),
}


@pytest.mark.parametrize("name", QUANTIZERS)
def test_views(name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        base = sample_with_blocks(128, 128, dtype=dtype)
        for view, cut in VIEWS.items():
            quantizer, reference = QUANTIZERS[name]("cuda"), QUANTIZERS[name]("cpu")
            seed(11)
            actual = outcome(lambda q=quantizer, c=cut, b=base: q(c(b.cuda())))
            seed(11)
            expected = outcome(lambda q=reference, c=cut, b=base: q(c(b)))
            assert_same(actual, expected, f"{name} of a view: {view}, {dtype}")


@pytest.mark.parametrize("name", [n for n in QUANTIZERS if n not in ("identity", "hybrid")])
def test_tex(name: str) -> None:
    x = sample_with_blocks(256, 128, dtype=torch.bfloat16)
    results: dict[str, dict[str, Any]] = {}
    for device in ("cuda", "cpu"):
        quantizer, source = QUANTIZERS[name](device), x.to(device)
        seed(11)
        got: dict[str, Any] = {"quantize": tex.quantize(source, quantizer)}
        bias, got["bgrad_quantize"] = tex.bgrad_quantize(source, quantizer)
        got["first"], got["second"] = tex.split_quantize(source, [128, 128], [quantizer] * 2)
        zero = torch.zeros(1, device=device)
        got["noop"] = tex.quantize(source, quantizer, None, zero)
        amax = torch.zeros(1, device=device)
        tex.compute_amax(source, amax)
        plain = {
            "bias": bias,
            "amax": amax,
            "decoded": tex.dequantize(got["quantize"], nfp.DType.kBFloat16),
        }
        grouped = outcome(lambda q=quantizer, s=source: tex.group_quantize(s, q, 2, None))
        if not isinstance(grouped, tuple):
            members = grouped.split_into_quantized_tensors()
            got |= {f"member {i}": member for i, member in enumerate(members)}
            rows = torch.tensor([96, 160], device=device)
            uneven = outcome(lambda q=quantizer, s=source, r=rows: tex.group_quantize(s, q, 2, r))
            if not isinstance(uneven, tuple):
                members = uneven.split_into_quantized_tensors()
                got |= {f"uneven member {i}": member for i, member in enumerate(members)}
        results[device] = {"made": got, "plain": plain}
    assert results["cuda"]["made"].keys() == results["cpu"]["made"].keys()
    for what, expected in results["cpu"]["made"].items():
        assert_same(results["cuda"]["made"][what], expected, f"{name} {what}")
    for what, expected in results["cpu"]["plain"].items():
        actual = results["cuda"]["plain"][what]
        assert actual.is_cuda, what
        assert_tensor(actual.cpu(), expected, f"{name} {what}")


def test_swizzles_and_transposes() -> None:
    x = sample_with_blocks(256, 192, dtype=torch.bfloat16)
    for make in (QUANTIZERS["mxfp8_e4m3"], QUANTIZERS["nvfp4"]):
        made = {device: make(device)(x.to(device)) for device in ("cuda", "cpu")}
        with no_synchronization():
            tex.swizzle_scales_for_gemm_(made["cuda"])
        tex.swizzle_scales_for_gemm_(made["cpu"])
        assert_same_buffers(on_host(made["cuda"]), made["cpu"], "swizzled")
    for name in ("current_e4m3", "nvfp4_2d", "mxfp8_2d", "block128x128"):
        made = {}
        for device in ("cuda", "cpu"):
            quantizer = QUANTIZERS[name](device)
            quantizer.set_usage(columnwise=False)
            made[device] = quantizer(x.to(device))
            made[device] = (made[device], outcome(
                lambda m=made[device]: m.update_usage(rowwise_usage=True, columnwise_usage=True)
            ))  # fmt: skip
        assert made["cuda"][1] == made["cpu"][1]
        assert_same(made["cuda"][0], made["cpu"][0], f"{name} with derived columns")
    rows = nfp.NVFP4Quantizer(with_2d_quantization=True)(x)
    codes, scales = rows._rowwise_data, rows._rowwise_scale_inv
    for device in ("cuda", "cpu"):
        turned = tex.nvfp4_data_transpose(codes.to(device))
        columns = torch.empty_like(rows._columnwise_scale_inv, device=device)
        tex.nvfp4_2d_scale_transpose(scales.to(device), columns, 256 // 16, 192 // 16)
        assert turned.device.type == device
        assert_tensor(turned.cpu(), rows._columnwise_data, "transposed codes")
        assert_tensor(columns.cpu(), rows._columnwise_scale_inv, "transposed scales")


def test_given_amaxes_and_columns_of_groups() -> None:
    x = sample_with_blocks(128, 64)
    made, sums = [], []
    for device in ("cuda", "cpu"):
        rows, columns = torch.tensor([50.0], device=device), torch.tensor([70.0], device=device)
        source = x.to(device)
        made.append(tex.nvfp4_quantize_with_amax(source, nfp.NVFP4Quantizer(), rows, columns))
        grouped, bias = tex.bgrad_group_quantize(source, nfp.MXFP8Quantizer(E4M3), 2, None)
        values = tex.group_dequantize(grouped, nfp.DType.kFloat32).rowwise_data
        assert values.device.type == bias.device.type == device
        sums.append([bias.cpu(), values.cpu()])
    assert_same(*made, "given amaxes")
    for actual, expected in zip(*sums, strict=True):
        assert_tensor(actual, expected, "group")


@pytest.mark.parametrize("name", QUANTIZERS)
def test_moves_and_files(name: str) -> None:
    x = sample(128, 128).bfloat16()
    host = QUANTIZERS[name]("cpu")(x).detach()
    expected = {n: buffer.clone() for n, buffer in buffers(host).items()}
    moved = host.to("cuda")
    assert type(moved) is type(host)
    assert_same(moved, host, f"{name} moved to the device")
    assert_same(host.cuda(), host, f"{name}.cuda()")
    assert_same(moved.clone(), host, f"{name} cloned there")
    assert_same(copy.deepcopy(moved), host, f"{name} copied there")
    assert_same_buffers(moved.cpu(), expected, f"{name} moved back")
    assert moved.cpu().device.type == "cpu"
    parameter = torch.nn.Parameter(moved, requires_grad=False)
    assert_same(parameter, host, f"{name} as a parameter")
    file = io.BytesIO()
    torch.save(moved, file)
    for place in ("cuda", "cpu"):
        file.seek(0)
        loaded = torch.load(file, weights_only=True, map_location=place)
        assert loaded.device.type == place
        assert_same_buffers(on_host(loaded), expected, f"{name} loaded to {place}")
    assert_same(pickle.loads(pickle.dumps(moved)), host, f"{name} pickled")
    seed(4)
    moved.quantize_(-x.cuda())
    seed(4)
    host.quantize_(-x)
    assert_same(moved, host, f"{name} written after a move")
    moved.copy_(x)  # from the host
    host.copy_(host.to("cuda"))


def test_views_and_operators() -> None:
    x = sample(256, 128).bfloat16()
    for name in ("current_e4m3", "mxfp8_e4m3", "block128x128", "nvfp4"):
        host, device = (QUANTIZERS[name](d)(x.to(d)).detach() for d in ("cpu", "cuda"))
        for what, cut in {
            "a slice": lambda q: q[:128], "a view": lambda q: q.view(2, 128, 128),
            "a split": lambda q: q.split(128)[1], "zeros": lambda q: torch.zeros_like(q),
        }.items():  # fmt: skip
            actual, expected = outcome(lambda c=cut, d=device: c(d)), cut(host)
            assert type(actual) is type(expected), f"{name}: {what}"
            assert_tensor(actual.dequantize().cpu(), expected.dequantize(), f"{name}: {what}")
        assert_tensor((device + 1).cpu(), host + 1, f"{name}: a sum")
        device[:128].zero_()
        host[:128].zero_()
        assert_same(device, host, f"{name} with rows of zeros")
    module = torch.nn.Linear(128, 256, bias=False)
    module.weight = torch.nn.Parameter(QUANTIZERS["mxfp8_e4m3"]("cpu")(x).detach())
    before = on_host(module.weight)
    module.to("cuda")
    assert_same_buffers(on_host(module.weight), before, "a module moved to the device")
    entries = dict(nfp.export({"w.weight": module.weight}, "fp8"))
    host = dict(nfp.export({"w.weight": QUANTIZERS["mxfp8_e4m3"]("cpu")(x)}, "fp8"))
    for entry, tensor in host.items():
        assert_tensor(entries[entry].cpu(), tensor, f"exported {entry}")


@pytest.mark.parametrize("name", QUANTIZERS)
def test_the_default_device_may_be_cuda(name: str) -> None:
    x = sample(128, 128).bfloat16()
    seed(2)
    expected = QUANTIZERS[name]("cpu")(x)
    with torch.device("cuda"):
        seed(2)
        assert_same(QUANTIZERS[name]("cuda")(x.cuda()), expected, name)
        seed(2)
        on_cpu = QUANTIZERS[name]("cpu")(x)
        assert on_cpu.device.type == "cpu"
        assert_same_buffers(on_cpu, expected, f"{name} of a CPU tensor")
        empty = QUANTIZERS[name]("cuda").make_empty((128, 128))
        assert_on_cuda(empty, f"{name}.make_empty()")


def test_autograd() -> None:
    x = sample(64, 64).cuda().requires_grad_()
    quantizer = nfp.MXFP8Quantizer(E4M3)
    (quantizer(x).dequantize() * 3).sum().backward()
    assert x.grad is not None and x.grad.is_cuda
    assert x.grad.unique().tolist() == [3.0]


def test_errors_name_both_devices_and_the_rule() -> None:
    x = sample(64, 64)
    cases: list[tuple[Callable[[], Any], type, str]] = [
        (lambda: delayed()("cpu")(x.cuda()), ValueError,
         "quantize: all tensors must be on one device, got the input on cuda:0 and scale on cpu"),
        (lambda: delayed()("cuda")(x), ValueError,
         "quantize: all tensors must be on one device, got the input on cpu and scale on cuda:0"),
        (lambda: tex.compute_amax(x.cuda(), torch.zeros(1)), ValueError,
         "amax: all tensors must be on one device, got the input on cuda:0 and the output on cpu"),
    ]  # fmt: skip
    a = nfp.MXFP8Quantizer(E4M3)(x.cuda()).detach()
    rule = "qgemm: codes must be on the CPU to be multiplied, got cuda:0"
    layer = nfp.Linear(64, 64, bias=False, device="cuda")
    cases += [
        (lambda: general_gemm(a, a, torch.float32), NotImplementedError, rule),
        (lambda: general_gemm(a, a, torch.float32, gelu=True), NotImplementedError, rule),
        (lambda: a @ a.t(), NotImplementedError, rule),
        (lambda: torch.nn.functional.linear(a, a), NotImplementedError, rule),
        (lambda: _run(layer, x.cuda()), NotImplementedError, rule),
    ]
    for call, error, text in cases:
        with pytest.raises(error) as raised:
            call()
        assert text in str(raised.value)


def _run(layer: torch.nn.Module, x: torch.Tensor) -> None:
    with nfp.autocast(recipe=MXFP8BlockScaling()):
        layer(x)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_another_device_than_the_current_one() -> None:
    x = sample(64, 64)
    with torch.cuda.device(0):
        made = nfp.MXFP8Quantizer(E4M3)(x.to("cuda:1"))
        assert torch.cuda.current_device() == 0
        assert made.device == torch.device("cuda:1")
        assert_same_buffers(on_host(made), nfp.MXFP8Quantizer(E4M3)(x), "on the second device")
