# SPDX-License-Identifier: Apache-2.0
"""Tests that the native module gives the same bytes on TransformerEngine's classes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from host_classes import assert_same_fields, host_of, hosts_quantizer
from narrowfloat.pytorch import tensor, tex
from narrowfloat.pytorch.tensor._hosted import HostedView, hosted, native, set_generation
from narrowfloat.pytorch.utils import set_non_tn_fp8_gemm_supported

E4M3, E5M2 = tex.DType.kFloat8E4M3, tex.DType.kFloat8E5M2

MAKERS: dict[str, Callable[[], Any]] = {
    "delayed": lambda: tensor.Float8Quantizer(torch.full((1,), 3.0), torch.zeros(1), E4M3),
    "current": lambda: tensor.Float8CurrentScalingQuantizer(E5M2, amax_epsilon=0.25),
    "mxfp8": lambda: tensor.MXFP8Quantizer(E4M3),
    "mxfp8 tiles": lambda: tensor.MXFP8Quantizer(E4M3, with_2d_quantization=True),
    "block": lambda: tensor.Float8BlockQuantizer(
        E4M3, rowwise=True, columnwise=True, block_scaling_dim=1
    ),
    "block tiles": lambda: tensor.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
    "nvfp4": lambda: tensor.NVFP4Quantizer(),
    "nvfp4 transform": lambda: tensor.NVFP4Quantizer(with_rht=True, with_post_rht_amax=True),
}


@pytest.fixture(params=[(9, 0), (10, 0)], ids=["9.0", "10.0"], autouse=True)
def same_generation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives both packages one generation, so that both keep or drop per-tensor transposes."""
    before = HostedView.generation, set_non_tn_fp8_gemm_supported(request.param == (10, 0))
    set_generation(*request.param)
    yield
    set_generation(*before[0])
    set_non_tn_fp8_gemm_supported(before[1])


def pair(name: str, **options: object) -> tuple[Any, Any]:
    """Returns narrowfloat's quantizer, and the host's quantizer with the same options."""
    own = MAKERS[name]()
    for option, value in options.items():
        setattr(own, option, value)
    return own, hosts_quantizer(own)


def sample(rows: int = 128, cols: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows + cols)
    return torch.randn(rows, cols, generator=generator).to(torch.bfloat16)


@pytest.mark.parametrize("internal", [False, True], ids=["tensor", "storage"])
@pytest.mark.parametrize("name", MAKERS)
def test_quantize_makes_the_hosts_class_with_the_same_fields(name: str, internal: bool) -> None:
    own, its = pair(name, internal=internal)
    x = sample()
    ours, hosts = tex.quantize(x, own), tex.quantize(x, its)
    wanted = own.STORAGE if internal else own.TENSOR
    assert type(ours) is wanted and type(hosts) is host_of(wanted)
    assert type(hosts._quantizer) is type(its)
    assert_same_fields(ours, hosts)
    if name == "delayed":
        assert torch.equal(own.amax, its.amax) and float(its.amax) == float(x.abs().max())


@pytest.mark.parametrize("name", MAKERS)
def test_quantize_fills_the_hosts_tensor_unless_the_flag_is_set(name: str) -> None:
    own, its = pair(name)
    ours, hosts = tex.quantize(sample(), own), tex.quantize(sample(), its)
    x = sample() * 3
    assert tex.quantize(x, its, hosts, torch.ones(1)) is hosts
    assert_same_fields(ours, hosts)
    tex.quantize(x, own, ours)
    tex.quantize(x, its, hosts, torch.zeros(1))
    assert_same_fields(ours, hosts)


@pytest.mark.parametrize("name", MAKERS)
def test_quantize_gives_a_storage_the_directions_of_the_quantizer(name: str) -> None:
    own, its = pair(name, columnwise_usage=False)
    ours, hosts = tex.quantize(sample(), own), tex.quantize(sample(), its)
    own.columnwise_usage = its.columnwise_usage = True
    tex.quantize(sample(), own, ours)
    tex.quantize(sample(), its, hosts)
    assert_same_fields(ours, hosts)


@pytest.mark.parametrize("otype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in MAKERS if "transform" not in name])
def test_dequantize(name: str, otype: torch.dtype) -> None:
    own, its = pair(name)
    code = {torch.float32: tex.DType.kFloat32, torch.bfloat16: tex.DType.kBFloat16}[otype]
    ours = tex.dequantize(tex.quantize(sample(), own), code)
    hosts = tex.dequantize(tex.quantize(sample(), its), code)
    assert ours.dtype == hosts.dtype == otype
    assert torch.equal(ours, hosts)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("transa", "transb"), [(True, False), (False, False), (False, True)])
def test_generic_gemm_and_mixed_operands(name: str, transa: bool, transb: bool) -> None:
    own, its = pair(name)
    a, b = sample(128, 128), sample(128, 128).flip(0)
    ours = [tex.quantize(t, own) for t in (a, b)]
    hosts = [tex.quantize(t, its) for t in (a, b)]

    def multiply(first: object, second: object) -> torch.Tensor:
        return tex.generic_gemm(
            first, transa, second, transb, None, None, tex.DType.kFloat32, None, None, False, None,
            False,
        )[0]  # fmt: skip

    wanted = multiply(*ours)
    assert torch.equal(multiply(*hosts), wanted)
    assert torch.equal(multiply(ours[0], hosts[1]), wanted)


@pytest.mark.parametrize("name", ["delayed", "current", "mxfp8"])
def test_generic_gemm_quantizes_its_output_for_the_host(name: str) -> None:
    own, its = pair(name)
    a, b = (tex.quantize(t, MAKERS["mxfp8"]()) for t in (sample(128, 128), sample(64, 128)))

    def multiply(quantizer: object) -> object:
        return tex.generic_gemm(
            a, True, b, False, None, quantizer, tex.DType.kBFloat16, None, None, False, None, False
        )[0]

    hosts = multiply(its)
    assert type(hosts) is host_of(own.TENSOR)
    assert_same_fields(multiply(own), hosts)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_swizzle_marks_the_hosts_tensor(name: str) -> None:
    own, its = pair(name)
    ours, hosts = tex.quantize(sample(), own), tex.quantize(sample(), its)
    tex.swizzle_scales_for_gemm_(ours, True, True)
    tex.multi_tensor_swizzle_scales_for_gemm_unchecked_([hosts], True, True)
    assert hosts._with_gemm_swizzled_scales
    assert_same_fields(ours, hosts)


@pytest.mark.parametrize("name", MAKERS)
def test_create_empty_makes_the_same_buffers(name: str) -> None:
    own, its = pair(name)
    ours = tex.create_empty_quantized_tensor(own, (64, 256), torch.bfloat16, "cpu")
    hosts = tex.create_empty_quantized_tensor(its, (64, 256), torch.bfloat16, "cpu")
    assert hosts.shape == ours.shape and hosts.dtype == torch.bfloat16
    for buffer in own.STORAGE.BUFFERS:
        mine, other = ours.__dict__[buffer.name], hosts.__dict__[buffer.name]
        assert (mine is None) == (other is None)
        assert mine is None or (mine.shape, mine.dtype) == (other.shape, other.dtype)


@pytest.mark.parametrize("name", MAKERS)
def test_split_and_bias_gradient(name: str) -> None:
    own, its = pair(name)
    x, sections = sample(256, 128), [128, 0, 128]
    for ours, hosts in zip(
        tex.split_quantize(x, sections, [own] * 3),
        tex.split_quantize(x, sections, [its] * 3),
        strict=True,
    ):
        if ours.numel():
            assert_same_fields(ours, hosts)
    sums, hosts = tex.bgrad_quantize(x, its)
    assert torch.equal(sums, x.float().sum(0).to(x.dtype))
    assert_same_fields(tex.bgrad_quantize(x, own)[1], hosts)


def test_options_that_an_older_host_lacks_are_at_their_defaults() -> None:
    own, its = pair("mxfp8")
    del its.with_2d_quantization
    assert_same_fields(tex.quantize(sample(), own), tex.quantize(sample(), its))


def test_a_view_shares_the_fields_and_is_never_kept() -> None:
    _, its = pair("mxfp8")
    hosts = tex.quantize(sample(), its)
    view = native(hosts)
    assert view.__dict__ is hosts.__dict__ and hosted(view) is hosts
    assert not any(isinstance(value, HostedView) for value in hosts.__dict__.values())
    assert isinstance(view, tensor.MXFP8TensorStorage)


def test_values_of_a_quantized_tensor_are_quantized_again() -> None:
    _, its = pair("mxfp8")
    first = tex.quantize(sample(), its)
    values = tex.dequantize(first, tex.DType.kBFloat16)
    assert_same_fields(tex.quantize(values, its), tex.quantize(first, its))


def test_unknown_generation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be 9\.0 or 10\.0, got 12\.0"):
        set_generation(12, 0)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "nvfp4 transform"])
def test_norms_and_activations_quantize_for_the_hosts_quantizers(name: str) -> None:
    x, weight = sample(), torch.ones(256, dtype=torch.bfloat16)
    grad, gate = sample().flip(0), torch.cat((sample(), sample().flip(1)), 1)
    norm = (1e-5, None), (tex.DType.kBFloat16, 0, False)
    entries: list[Callable[[Any], Any]] = [
        lambda q: tex.rmsnorm_fwd(x, weight, *norm[0], q, *norm[1])[0],
        lambda q: tex.layernorm_fwd(x, weight, weight, *norm[0], q, *norm[1])[0],
        lambda q: tex.gelu(x, q),
        lambda q: tex.dgelu(grad, x, q),
        lambda q: tex.swiglu(gate, q),
        lambda q: tex.dswiglu(grad, gate, q),
        lambda q: tex.dbias_dsilu(grad, x, q)[1],
        lambda q: tex.scaled_swiglu(gate, torch.ones(128), q),
    ]
    for entry in entries:
        own, its = pair(name)
        ours, hosts = entry(own), entry(its)
        assert type(hosts) is host_of(type(ours)) and hosts.dtype == torch.bfloat16
        assert_same_fields(ours, hosts)
