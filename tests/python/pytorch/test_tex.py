# SPDX-License-Identifier: Apache-2.0
"""Tests the functions that replace TransformerEngine's native module."""

import ml_dtypes
import numpy as np
import pytest
import torch
from golden import Case, cases
from narrowfloat.pytorch import constants, tex
from narrowfloat.pytorch.constants import DType, TE_DType
from narrowfloat.pytorch.custom_recipes.gemm import MMParams
from narrowfloat.pytorch.custom_recipes.reference_current_scaling import (
    CurrentScalingQuantizerRef,
)
from narrowfloat.pytorch.custom_recipes.reference_nvfp4 import NVFP4QuantizerRef
from narrowfloat.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from narrowfloat.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer
from narrowfloat.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
from narrowfloat.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer
from torch_golden import FP8, assert_tensor, tensor_of

import narrowfloat as nf

E4M3 = tex.DType.kFloat8E4M3


def gemm(
    a: object,
    transa: bool,
    b: object,
    transb: bool,
    out: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    accumulate: bool = False,
) -> torch.Tensor:
    """Calls generic_gemm with TransformerEngine's sixteen positional arguments."""
    workspace = torch.empty(4, dtype=torch.uint8)
    bfloat16 = TE_DType[torch.bfloat16]
    y, bias_grad, gelu_input, extra = tex.generic_gemm(
        a, transa, b, transb, out, None, TE_DType[dtype], None, bfloat16, False, None, False,
        workspace, workspace.shape[0], accumulate, False,
    )  # fmt: skip
    assert bias_grad is None and gelu_input is None and extra is None
    return y


def test_names() -> None:
    assert tex.DType is constants.DType
    assert sorted(tex.__all__) == tex.__all__
    for name in tex.__all__:
        assert getattr(tex, name).__doc__, name
    assert tex.FP8FwdTensors is constants.FP8FwdTensorIdx
    assert tex.FP8BwdTensors is constants.FP8BwdTensorIdx
    assert [slot.value for slot in tex.FP8FwdTensors] == list(range(9))
    assert [slot.name for slot in tex.FP8FwdTensors][-3:] == [
        "GEMM3_INPUT", "GEMM3_WEIGHT", "GEMM3_OUTPUT"]  # fmt: skip
    assert [slot.value for slot in tex.FP8BwdTensors] == list(range(6))


@pytest.mark.parametrize("case", list(cases("cs"))[::7], ids=lambda case: case.name)
def test_quantize_and_dequantize(case: Case) -> None:
    dtypes = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: tex.DType.kFloat8E5M2}
    quantizer = Float8CurrentScalingQuantizer(
        dtypes[FP8[case.params["q_dtype"]]],
        force_pow_2_scales=case.params["force_pow_2_scales"],
        amax_epsilon=case.params["amax_epsilon"],
    )
    x = tensor_of(case["x"]).requires_grad_()
    q = tex.quantize(x, quantizer)
    assert q.grad_fn is None and not q.requires_grad
    assert_tensor(q._data, case.kernel("data"), case.name)
    out = quantizer.make_empty(x.shape, dtype=x.dtype)
    assert tex.quantize(x, quantizer, out) is out
    assert_tensor(out._data, q._data, "output")
    y = tex.dequantize(q, tex.DType.kBFloat16)
    assert y.dtype == torch.bfloat16 and y.grad_fn is None
    assert_tensor(y, q.dequantize(dtype=torch.bfloat16).detach(), "dequantize")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Float8CurrentScalingQuantizer(E4M3),
        lambda: MXFP8Quantizer(E4M3),
        lambda: Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
        lambda: NVFP4Quantizer(),
    ],
)
def test_a_noop_flag_leaves_every_byte(make: object) -> None:
    """Checks that a flag of 1 skips the write, and that a flag of 0 does not."""
    quantizer = make()
    first, second = torch.randn(64, 64), torch.randn(64, 64) * 7
    q = quantizer(first)
    before = [t.clone() for t in q.prepare_for_saving()[0] if t is not None]
    q = quantizer(first)
    tex.quantize(second, quantizer, q, torch.ones(1))
    after = [t for t in q.prepare_for_saving()[0] if t is not None]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    q = quantizer(first)
    tex.quantize(second, quantizer, q, torch.zeros(1))
    assert torch.equal(q.dequantize(), quantizer(second).dequantize())


@pytest.mark.parametrize("internal", [False, True])
def test_new_tensors_of_internal_quantizers_are_bare(internal: bool) -> None:
    x = torch.randn(32, 64)
    for quantizer in (MXFP8Quantizer(E4M3), Float8CurrentScalingQuantizer(E4M3)):
        quantizer.internal = internal
        q = tex.quantize(x, quantizer)
        assert isinstance(q, torch.Tensor) is not internal
        assert_tensor(tex.dequantize(q, tex.DType.kFloat32), quantizer(x).dequantize(), "values")
        (part,) = tex.split_quantize(x, [32], [quantizer])
        assert isinstance(part, torch.Tensor) is not internal
        skipped = tex.quantize(x, quantizer, noop=torch.ones(1))
        assert type(skipped) is type(q) and skipped.shape == q.shape
        assert_tensor(
            tex.quantize(x, quantizer, noop=torch.zeros(1)).dequantize(), q.dequantize(), "noop 0"
        )


def test_split_and_multi_tensor_quantize() -> None:
    x, sections = torch.randn(160, 64), [32, 0, 96, 32]
    quantizers = [MXFP8Quantizer(E4M3) for _ in sections]
    parts = tex.split_quantize(x, sections, quantizers)
    wanted = tex.multi_tensor_quantize(x.split(sections), quantizers)
    whole = nf.grouped_quantize(x.numpy(), sections, "mxfp8_e4m3", columnwise=True)
    for part, want, core in zip(parts, wanted, whole, strict=True):
        for direction in ("rowwise", "columnwise"):
            for name in (f"{direction}_data", f"{direction}_scale_inv"):
                assert_tensor(getattr(part, f"_{name}"), core.buffers[name], name)
                assert_tensor(getattr(want, f"_{name}"), core.buffers[name], name)
    for call, message in (
        (lambda: tex.split_quantize(x, sections, quantizers[:2]),
         "split_quantize: needs one quantizer per section, got 4 sections and 2 quantizers"),
        (lambda: tex.split_quantize(x, [32, 32], quantizers[:2]),
         "split_quantize: sections must add up to the rows, got [32, 32] for 160 rows"),
        (lambda: tex.multi_tensor_quantize([x], quantizers),
         "multi_tensor_quantize: needs one quantizer per tensor, got 1 tensors and 4 quantizers"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as raised:
            call()
        assert str(raised.value) == message


def test_stochastic_rounding_of_sections_is_unbiased() -> None:
    """Checks that the mean of many roundings is nearer to the source than one to nearest."""
    torch.manual_seed(11)
    x, sections = torch.randn(64, 64).to(torch.bfloat16), [32, 32]
    makers = {
        flag: [NVFP4Quantizer(columnwise=False, stochastic_rounding=flag) for _ in sections]
        for flag in (False, True)
    }

    def values(flag: bool) -> torch.Tensor:
        parts = tex.split_quantize(x, sections, makers[flag])
        return torch.cat([q.dequantize().float() for q in parts])

    rounds = [values(True) for _ in range(50)]
    assert any(not torch.equal(rounds[0], other) for other in rounds[1:])
    error = (torch.stack(rounds).mean(0) - x.float()).square().mean()
    assert error < (values(False) - x.float()).square().mean()


def test_bgrad_quantize_and_compute_amax() -> None:
    x = torch.randn(2, 32, 64).to(torch.bfloat16)
    bias_grad, q = tex.bgrad_quantize(x, MXFP8Quantizer(E4M3))
    assert_tensor(bias_grad, x.float().reshape(64, 64).sum(0).to(torch.bfloat16), "sum")
    assert_tensor(q._rowwise_data, MXFP8Quantizer(E4M3)(x)._rowwise_data, "codes")
    amax = torch.full((1,), 3.0)
    x[0, 1, 2], x[1, 3, 4] = float("nan"), -99.0
    tex.compute_amax(x, amax)
    assert amax.tolist() == [99.0]


@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_swizzle_is_what_optimize_for_gemm_makes(name: str, columnwise: bool) -> None:
    """Checks that padding becomes zero, whatever the padding of compact scales was."""
    kinds = {"mxfp8": lambda: MXFP8Quantizer(E4M3), "nvfp4": lambda: NVFP4Quantizer()}
    shape = {"mxfp8": (160, 96), "nvfp4": (144, 80)}[name]
    quantizer = kinds[name]()
    quantizer.set_usage(rowwise=not columnwise, columnwise=columnwise)
    x = torch.randn(shape)
    q = quantizer(x)
    field = f"_{'columnwise' if columnwise else 'rowwise'}_scale_inv"
    scale = getattr(q, field)
    core = nf.quantize(x.numpy(), f"{name}_e4m3" if name == "mxfp8" else name,
                       rowwise=not columnwise, columnwise=columnwise, swizzled=True)  # fmt: skip
    compact = nf.unswizzle(core).buffers[field[1:]]
    scale[torch.from_numpy(compact == 0)] = 255  # padding: no block of x is all zero
    tex.swizzle_scales_for_gemm_(q)
    assert q._with_gemm_swizzled_scales and getattr(q, field) is scale
    assert_tensor(scale, core.buffers[field[1:]], name)
    before = scale.clone()
    tex.swizzle_scales_for_gemm_(q)
    assert torch.equal(scale, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_generic_gemm_equals_the_references_product(dtype: torch.dtype, accumulate: bool) -> None:
    torch.manual_seed(12)
    native = Float8CurrentScalingQuantizer(E4M3)
    reference = CurrentScalingQuantizerRef(torch.float8_e4m3fn)
    x, w = torch.randn(128, 192).to(torch.bfloat16), torch.randn(64, 192).to(torch.bfloat16)
    out = torch.randn(128, 64).to(dtype) if accumulate else None
    y = gemm(native(w), True, native(x), False, None if out is None else out.clone(), dtype,
             accumulate)  # fmt: skip
    qx, qw = reference.quantize(x), reference.quantize(w)
    want = reference.qgemm(
        qx.data, qw.data, MMParams(), dtype, qx.scale, qw.scale, None,
        None if out is None else out.clone(), accumulate, None, qx, qw,
    )  # fmt: skip
    assert_tensor(y, want, "not a bit differs")


@pytest.mark.parametrize("x_columnwise", [False, True])
@pytest.mark.parametrize("w_columnwise", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
def test_generic_gemm_of_nvfp4_in_all_four_layouts(
    x_columnwise: bool, w_columnwise: bool, accumulate: bool
) -> None:
    torch.manual_seed(13)
    rows, inner, cols = 96, 128, 64
    x = torch.randn((inner, rows) if x_columnwise else (rows, inner))
    w = torch.randn((inner, cols) if w_columnwise else (cols, inner))
    native, reference = NVFP4Quantizer(), NVFP4QuantizerRef()
    out = torch.randn(rows, cols) if accumulate else None
    qx, qw = native(x), native(w)
    for q, drop in ((qx, x_columnwise), (qw, w_columnwise)):
        q.update_usage(rowwise_usage=not drop, columnwise_usage=drop)
    y = gemm(
        qw, not w_columnwise, qx, x_columnwise, None if out is None else out.clone(),
        accumulate=accumulate,
    )  # fmt: skip
    rx = reference.quantize(x.t().contiguous() if x_columnwise else x)
    rw = reference.quantize(w.t().contiguous() if w_columnwise else w)
    want = reference.qgemm(
        rx.data, rw.data, None, torch.float32, rx.scale, rw.scale, None,
        None if out is None else out.clone(), accumulate, None, rx, rw,
    )  # fmt: skip
    # Both add the same blocks in fp32. One has the amaxes in the scales, the other multiplies the
    # sum by them. Each error is (K + 8) 2^-24 of the magnitudes, and one rounding.
    magnitudes = rx.dequantize().double().abs() @ rw.dequantize().double().abs().t()
    bound = 2 * (inner + 8) * 2.0**-24 * magnitudes + 2.0**-23 * want.double().abs()
    assert ((y.double() - want.double()).abs() <= bound).all()


@pytest.mark.parametrize("dim", [1, 2])
def test_both_transposed_reads_what_the_transpose_holds(dim: int) -> None:
    make = Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, block_scaling_dim=dim)
    x, w = torch.randn(160, 96), torch.randn(64, 160)
    y = gemm(make(w), True, make(x), True)
    assert_tensor(y, gemm(make(w), True, make(x.t().contiguous()), False), "TT")
    mxfp8 = MXFP8Quantizer(E4M3)
    with pytest.raises(NotImplementedError) as raised:
        gemm(mxfp8(w), True, mxfp8(x), True)
    assert str(raised.value) == (
        "mxfp8_e4m3 is not supported, its columnwise codes are not stored transposed"
    )


def test_generic_gemm_refuses_overlap() -> None:
    q = MXFP8Quantizer(E4M3)(torch.zeros(32, 32))
    with pytest.raises(NotImplementedError) as raised:
        tex.generic_gemm(q, True, q, False, None, None, None, None, None, False, None, False,
                         comm_overlap=object())  # fmt: skip
    assert str(raised.value) == "generic_gemm: overlap with communication needs a GPU"
    y = tex.generic_gemm(q, True, q, False, None, None, None, None, None, False, None, False)[0]
    assert y.dtype == q.dtype


@pytest.mark.parametrize(("a", "b"), [((), ()), ((4, 4), ()), ((), (3, 1))])
def test_generic_gemm_refuses_operands_without_dimensions(
    a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError) as raised:
        tex.generic_gemm(torch.ones(a), True, torch.ones(b), False, None, None, None, None, None,
                         False, None, False)  # fmt: skip
    assert str(raised.value) == (
        f"general_gemm: A and B must have dimensions, got shapes {a} and {b}"
    )


def test_fused_update_of_several_states() -> None:
    torch.manual_seed(14)
    histories = [torch.rand(4, 2), torch.rand(3, 1)]
    scales = [torch.ones(2), torch.full((1,), 5.0)]
    newest = torch.tensor([3.0, 0.0, 0.5])
    wanted = [
        nf.update_delayed_scale(h.numpy(), s.numpy(), 57344.0, 1, "max", reduced_amax=n.numpy())
        for h, s, n in zip(histories, scales, newest.split([2, 1]), strict=True)
    ]
    tex.fused_amax_and_scale_update_after_reduction(
        newest, histories, scales, "max", tex.DType.kFloat8E5M2, 1
    )
    for history, scale, (want_history, want_scale) in zip(histories, scales, wanted, strict=True):
        assert_tensor(history, want_history, "history")
        assert_tensor(scale, want_scale, "scale")
    with pytest.raises(ValueError) as raised:
        tex.fused_amax_and_scale_update_after_reduction(
            newest[:2], histories, scales, "max", E4M3, 0
        )
    assert str(raised.value) == (
        "fused_amax_and_scale_update_after_reduction: needs one history and one amax per scale, "
        "got 2 histories and 2 amaxes for scales of [2, 1]"
    )


def test_a_state_of_inference_mode_is_updated_outside_it() -> None:
    """Checks states made in inference mode, since a layer may train after an evaluation."""
    with torch.inference_mode():
        states = torch.ones(4, 2), torch.ones(2)
    plain = tuple(torch.ones(state.shape) for state in states)
    for history, scale in (states, plain):
        tex.fused_amax_and_scale_update_after_reduction(
            torch.tensor([3.0, 0.0]), [history], [scale], "max", E4M3, 0
        )
    assert torch.equal(states[0], plain[0]) and torch.equal(states[1], plain[1])
    assert states[1].tolist() == [float(torch.tensor(448.0) / 3), 448.0]


def test_bfloat16_arrays_are_the_tensors_memory() -> None:
    from narrowfloat.pytorch._arrays import array_of

    for dtype, numpy_dtype in (
        (torch.bfloat16, ml_dtypes.bfloat16),
        (torch.float32, np.float32),
        (torch.float16, np.float16),
    ):
        tensor = torch.randn(3, 5).to(dtype)
        array = array_of(tensor)
        assert array.dtype == numpy_dtype and array.ctypes.data == tensor.data_ptr()


def test_plain_products_are_pytorchs_although_beta_is_zero() -> None:
    """Passes beta 0 without accumulation, as TransformerEngine does."""
    a, b = torch.randn(33, 65).bfloat16(), torch.randn(17, 65).bfloat16()
    y = tex.generic_gemm(
        a, True, b, False, None, None, tex.DType.kBFloat16, None, None, False, None, False,
        alpha=1.0, beta=0.0,
    )[0]  # fmt: skip
    assert torch.equal(y, torch.nn.functional.linear(b, a))
    quantizer = MXFP8Quantizer(E4M3)
    a, b = (quantizer(torch.randn(64, 64)) for _ in range(2))
    plain, scaled = (
        tex.generic_gemm(
            a, True, b, False, None, None, tex.DType.kFloat32, None, None, False, None, False,
            beta=beta,
        )[0]
        for beta in (None, 0.0)
    )  # fmt: skip
    assert torch.equal(plain, scaled)


@pytest.mark.parametrize(
    ("trans_a", "trans_b"), [(True, False), (False, False), (False, True)], ids=["TN", "NN", "NT"]
)
def test_float16_products_are_those_of_float32_rounded_once(trans_a: bool, trans_b: bool) -> None:
    """Compares with fp32 sums: PyTorch's float16 product is slow on most CPUs, with other sums."""
    torch.manual_seed(7)
    a = torch.randn((40, 96) if trans_a else (96, 40)).half()
    b = torch.randn((96, 24) if trans_b else (24, 96)).half()
    left, right = b.t() if trans_b else b, a.t() if trans_a else a
    bias = torch.randn(40).half()
    sums = left.float() @ right.float()
    y = tex.generic_gemm(
        a, trans_a, b, trans_b, None, None, tex.DType.kFloat16, bias, tex.DType.kFloat16, False,
        None, False,
    )[0]  # fmt: skip
    assert y.dtype == torch.float16 and torch.equal(y, (sums + bias.float()).half())
    total = torch.randn(24, 40)
    want = total + sums
    tex.generic_gemm(
        a, trans_a, b, trans_b, total, None, tex.DType.kFloat32, None, None, False, None, False,
        accumulate=True,
    )  # fmt: skip
    assert torch.equal(total, want)


def test_a_quantizer_without_a_place_for_the_amax_casts_under_its_scale() -> None:
    x, scale = torch.randn(32, 64), torch.full((1,), 4.0)
    expected = Float8Quantizer(scale, torch.zeros(1), DType.kFloat8E4M3)(x)
    made = Float8Quantizer(scale, torch.empty(0), DType.kFloat8E4M3)(x)
    assert torch.equal(made._data, expected._data)
    assert torch.equal(made._transpose, expected._transpose)


def test_missing_outputs_and_dimensions_are_refused() -> None:
    e4m3, x = DType.kFloat8E4M3, torch.zeros(4)
    with pytest.raises(ValueError) as raised:
        tex.te_general_grouped_gemm(
            [x], True, [x], False, None, e4m3, [4], [x], e4m3, False, [x], False, [x], 0, False,
            False,
        )  # fmt: skip
    assert str(raised.value) == "te_general_grouped_gemm: needs D, got None"
    with pytest.raises(ValueError) as raised:
        tex.swap_first_dims(x)
    assert str(raised.value) == "swap_first_dims: needs at least two dimensions, got (4,)"
