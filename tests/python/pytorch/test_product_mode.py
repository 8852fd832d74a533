# SPDX-License-Identifier: Apache-2.0
"""Tests product_mode("fast"): which products use it, and the bound of their errors."""

import threading
from collections.abc import Iterator

import narrowfloat.pytorch as nfp
import numpy as np
import pytest
import torch
from families import E4M3, SCHEMES, sample
from narrowfloat.common.recipe import MXFP8BlockScaling
from narrowfloat.pytorch._arrays import core_tensor
from narrowfloat.pytorch.cpp_extensions import (
    _expanded_product,
    general_gemm,
    qgemm_operator,
)
from narrowfloat.pytorch.cpp_extensions._expanded_product import multiply_expanded
from narrowfloat.pytorch.cpp_extensions.operands import LAYOUTS

import narrowfloat as nf
from narrowfloat import _core

M, N, K = 96, 64, 160
SHAPES = {"TN": ((M, K), (N, K)), "NN": ((M, N), (N, K)), "NT": ((M, N), (M, K))}
BF16, FP32 = torch.bfloat16, torch.float32

needs_bfloat16 = pytest.mark.usefixtures("bfloat16_products")


@pytest.fixture
def bfloat16_products() -> None:
    """Skips the test on processors without bfloat16 products."""
    if not _core.has_bfloat16_products():
        pytest.skip("this processor has no bfloat16 products")


@pytest.fixture(autouse=True)
def mode(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts tests in mode reproducible with a FEWEST_TERMS of 0, and restores both settings."""
    monkeypatch.setattr(_expanded_product, "FEWEST_TERMS", 0)
    with nfp.product_mode("reproducible"):
        yield


def pair(name: str, layout: str) -> tuple[nfp.QuantizedTensor, nfp.QuantizedTensor]:
    return tuple(SCHEMES[name]()(sample(*shape, dtype=BF16)) for shape in SHAPES[layout])


def values(tensor: nfp.QuantizedTensor, usage: str) -> torch.Tensor:
    """Returns the values of one direction. The other direction has other blocks and values."""
    return torch.from_numpy(nf.dequantize(core_tensor(tensor, (usage,)), np.float32)).double()


def exact(b: nfp.QuantizedTensor, a: nfp.QuantizedTensor, layout: str) -> list[torch.Tensor]:
    """Returns the products of the decoded values and of their magnitudes, in binary64."""
    usage_a, usage_b = LAYOUTS[layout].usages
    x, w = values(b, usage_b), values(a, usage_a)
    x, w = x.t() if layout == "NT" else x, w.t() if layout == "TN" else w
    return [x @ w, x.abs() @ w.abs()]


def assert_within_bound(y: torch.Tensor, want: torch.Tensor, size: torch.Tensor, k: int) -> None:
    # The bound of docs/exactness.md on the sum, then one rounding to bfloat16.
    error = (k + 8) * 2.0**-24 * size
    assert ((y.double() - want).abs() <= error + (want.abs() + error) * 2.0**-8).all()


@needs_bfloat16
@pytest.mark.parametrize("layout", list(SHAPES))
@pytest.mark.parametrize("name", [n for n in SCHEMES if n != "nvfp4_row_scaled"])
def test_every_family_and_layout_keeps_the_bound(
    name: str, layout: str, fast_layouts: list[str]
) -> None:
    b, a = pair(name, layout)
    want, size = exact(b, a, layout)
    with nfp.product_mode("fast"):
        y = general_gemm(a, b, layout=layout)[0]
    assert y.dtype == BF16
    assert_within_bound(y, want, size, SHAPES[layout][0][layout != "NT"])
    assert fast_layouts == [layout]
    with nfp.product_mode("fast"):
        assert torch.equal(y, general_gemm(a, b, layout=layout)[0])  # in a second run


@needs_bfloat16
def test_bias_and_accumulation_are_rounded_once() -> None:
    b, a = pair("float8_current", "TN")
    want, size = exact(b, a, "TN")
    bias, held = sample(N, dtype=BF16), sample(M, N, dtype=BF16)
    with nfp.product_mode("fast"):
        y = general_gemm(a, b, bias=bias)[0]
        total = general_gemm(a, b, out=held.clone(), accumulate=True)[0]
    assert_within_bound(y, want + bias.double(), size, K)
    assert_within_bound(total, want + held.double(), size, K)


@needs_bfloat16
def test_bfloat16_results_are_pytorchs_product_of_the_values() -> None:
    b, a = pair("mxfp8", "TN")
    with nfp.product_mode("fast"):
        y = general_gemm(a, b)[0]
    assert torch.equal(y, b.dequantize(dtype=BF16) @ a.dequantize(dtype=BF16).t())


def test_other_results_stay_reproducible() -> None:
    b, a = pair("mxfp8", "TN")
    for dtype in (FP32, torch.float16):
        want = general_gemm(a, b, out_dtype=dtype)[0]
        with nfp.product_mode("fast"):
            assert torch.equal(general_gemm(a, b, out_dtype=dtype)[0], want)


@pytest.mark.parametrize(
    "options",
    [
        {"gelu": True},
        {"gelu": True, "bias": torch.ones(N)},
        {"gelu": True, "grad": True},
        {"gelu": True, "grad": True, "bias": torch.ones(N)},
        {"gelu": True, "accumulate": True},
        {"bias": torch.ones(N), "accumulate": True},
    ],
    ids=lambda options: "-".join(options),
)
def test_steps_behind_the_sums_keep_the_reproducible_product(options: dict[str, object]) -> None:
    """Checks steps that PyTorch's product cannot compute, because it rounds its sums to bfloat16
    and takes one addend."""
    b, a = pair("mxfp8", "TN")
    if "grad" in options:
        options = {**options, "gelu_in": sample(M, N, dtype=BF16)}
    found = []
    for mode in ("reproducible", "fast"):
        out = torch.ones(M, N, dtype=BF16) if "accumulate" in options else None
        with nfp.product_mode(mode):
            found.append(general_gemm(a, b, out=out, out_dtype=BF16, **options))
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def test_scales_that_bfloat16_cannot_hold_stay_reproducible() -> None:
    x = sample(M, K, dtype=FP32)
    x[0, :32] *= 2.0**-110
    x[1, :32] *= 2.0**110
    q = nfp.MXFP8Quantizer(E4M3)(x)
    want = general_gemm(q, q, out_dtype=BF16)[0]
    with nfp.product_mode("fast"):
        assert torch.equal(general_gemm(q, q, out_dtype=BF16)[0], want)


def layer_and_gradients(compiled: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(3)
    layer = nfp.Linear(128, 96, params_dtype=BF16)
    x = sample(64, 128, dtype=BF16, requires_grad=True)
    call = torch.compile(layer, backend="aot_eager") if compiled else layer
    with nfp.autocast(recipe=MXFP8BlockScaling()):
        y = call(x)
    with nfp.product_mode("reproducible"):  # the backward pass has the mode of the forward pass
        y.backward(sample(64, 96, dtype=BF16))
    return [y.detach(), x.grad, layer.weight.grad, layer.bias.grad]


@pytest.fixture
def fast_layouts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the layouts of products in bfloat16, since bytes seldom differ."""
    seen: list[str] = []

    def multiply(*arguments: object) -> bool:
        if multiply_expanded(*arguments):
            seen.append(str(arguments[2]))
            return True
        return False

    monkeypatch.setattr(qgemm_operator, "multiply_expanded", multiply)
    return seen


@needs_bfloat16
@pytest.mark.parametrize("layout", list(SHAPES))
def test_a_product_with_few_terms_stays_reproducible(
    layout: str, fast_layouts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    b, a = pair("mxfp8", layout)
    want = general_gemm(a, b, layout=layout)[0]
    for fewest, seen in ((M * N * K + 1, []), (M * N * K, [layout])):
        monkeypatch.setattr(_expanded_product, "FEWEST_TERMS", fewest)
        with nfp.product_mode("fast"):
            y = general_gemm(a, b, layout=layout)[0]
        assert fast_layouts == seen
        assert seen or torch.equal(y, want)


@needs_bfloat16
@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_and_its_gradients_obey(compiled: bool, fast_layouts: list[str]) -> None:
    plain = layer_and_gradients(compiled)
    assert not fast_layouts
    with nfp.product_mode("fast"):
        fast = layer_and_gradients(compiled)
    assert fast_layouts == ["TN", "NN", "NT"]
    # Products of codes are exact in fp32. Sums of n products in two different orders differ by at
    # most 2 n 2^-24 times the sum of magnitudes. This sum is below 128 for the 64 products of a
    # weight's gradient, and below 64 for the 128 or 96 products of the others. Rounding adds at
    # most one step of bfloat16, 2^-7 of the value.
    for p, f in zip(plain, fast, strict=True):
        torch.testing.assert_close(p, f, rtol=2**-7, atol=2 * 64 * 2**-24 * 128)


@needs_bfloat16
def test_compiled_code_follows_the_mode(fast_layouts: list[str]) -> None:
    b, a = pair("nvfp4", "TN")
    compiled = torch.compile(lambda: general_gemm(a, b)[0], backend="aot_eager")
    for mode, count in (("reproducible", 0), ("fast", 1), ("reproducible", 0)):
        fast_layouts.clear()
        with nfp.product_mode(mode):
            y = compiled()
            assert len(fast_layouts) == count, mode
            assert torch.equal(y, general_gemm(a, b)[0]), mode


@needs_bfloat16
def test_compiled_code_may_enter_the_mode_itself(fast_layouts: list[str]) -> None:
    b, a = pair("mxfp8", "TN")

    def product() -> torch.Tensor:
        with nfp.product_mode("fast"):
            return general_gemm(a, b)[0]

    y = torch.compile(product, backend="aot_eager")()
    assert fast_layouts == ["TN"] and nfp.get_product_mode() == "reproducible"
    assert torch.equal(y, product())


def test_it_is_a_setting_and_a_context() -> None:
    nfp.product_mode("fast")
    assert nfp.get_product_mode() == "fast"
    with nfp.product_mode("reproducible"):
        assert nfp.get_product_mode() == "reproducible"
    assert nfp.get_product_mode() == "fast"
    with pytest.raises(ValueError, match="mode must be 'reproducible' or 'fast', got 'quick'"):
        nfp.product_mode("quick")
    with pytest.raises(ValueError, match="mode must be 'reproducible' or 'fast', got 'None'"):
        nfp.product_mode(None)
    assert nfp.get_product_mode() == "fast"


def test_contexts_end_in_any_order() -> None:
    first, second = nfp.product_mode("fast"), nfp.product_mode("reproducible")
    with second:
        with first:
            assert nfp.get_product_mode() == "reproducible"  # the later setting applies
    third, fourth = nfp.product_mode("fast"), nfp.product_mode("fast")
    third.__enter__()
    fourth.__enter__()
    third.__exit__()
    assert nfp.get_product_mode() == "fast"
    fourth.__exit__()
    assert nfp.get_product_mode() == "reproducible"
    with third:  # the object is used again
        assert nfp.get_product_mode() == "fast"
    assert nfp.get_product_mode() == "reproducible"


def test_a_setting_within_a_context_ends_with_it() -> None:
    with nfp.product_mode("reproducible"):
        nfp.product_mode("reproducible")
        nfp.product_mode("fast")
        assert nfp.get_product_mode() == "fast"
    assert nfp.get_product_mode() == "reproducible"


def test_a_setting_in_compiled_code_outlives_later_contexts() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def call(x: torch.Tensor) -> torch.Tensor:
        nfp.product_mode("fast")
        return x + 1

    call(torch.ones(1))
    with nfp.product_mode("reproducible"):
        assert nfp.get_product_mode() == "reproducible"
    assert nfp.get_product_mode() == "fast"


def test_a_backward_pass_leaves_the_mode_of_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nfp.Linear(32, 32, params_dtype=BF16)
    x = sample(32, 32, dtype=BF16, requires_grad=True)
    seen = []

    def look() -> str:
        thread = threading.Thread(target=lambda: seen.append((here, nfp.get_product_mode())))
        here = nfp.get_product_mode()
        thread.start()
        thread.join()
        return here

    with nfp.product_mode("fast"), nfp.autocast(recipe=MXFP8BlockScaling()):
        y = layer(x)
    monkeypatch.setattr(qgemm_operator, "get_product_mode", look)
    y.backward(sample(32, 32, dtype=BF16))
    assert seen == [("fast", "reproducible")] * 2
    assert nfp.get_product_mode() == "reproducible"
