# SPDX-License-Identifier: Apache-2.0
"""Tests the files of DumpTensors, and the operands that PerTensorScaling and FakeQuant change."""

from pathlib import Path
from typing import Any

import pytest
import torch
from narrowfloat.debug.features.per_tensor_scaling import per_tensor_cast
from sessions import messages, section, session, te

from narrowfloat import debug
from narrowfloat import pytorch as nfp

E4M3, E5M2 = nfp.DType.kFloat8E4M3, nfp.DType.kFloat8E5M2


def dumps(folder: Path) -> list[str]:
    root = folder / "tensor_dumps"
    return sorted(str(path.relative_to(root)) for path in root.glob("**/*.pt"))


def show(
    layer: str, tensor: Any, rowwise: Any = None, columnwise: Any = None, step: int = 7
) -> None:
    te().inspect_tensor(
        layer,
        tensor_name="activation",
        tensor=tensor,
        iteration=7,
        tp_group=None,
        rowwise_quantized_tensor=rowwise,
        columnwise_quantized_tensor=columnwise,
        quantizer=None,
        tp_size=1,
    )


def dump_of(**keys: Any) -> dict:
    return section(DumpTensors={"tensors": ["activation"], **keys})


@pytest.mark.parametrize("side", ["both", "rowwise", "columnwise"])
def test_both_tensors_in_one_file(side: str) -> None:
    x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    q = nfp.MXFP8Quantizer(E4M3)(x)
    forms = (q if side != "columnwise" else None, q if side != "rowwise" else None)
    with session(dump_of(high_precision_tensor=True, quantized_tensor=True)) as folder:
        show("decoder.1/mlp fc1", x, *forms)
        assert dumps(folder) == ["rank_0/iter_000007/decoder_1_mlp_fc1_activation.pt"]
        path = folder / "tensor_dumps" / dumps(folder)[0]
        dump = torch.load(path, weights_only=False)
    assert list(dump) == ["high_precision", "quantized"]
    assert torch.equal(dump["high_precision"], x) and not dump["high_precision"].requires_grad
    assert type(dump["quantized"]) is type(q)
    assert torch.equal(dump["quantized"]._rowwise_data, q._rowwise_data)
    assert torch.equal(dump["quantized"].dequantize(), q.dequantize())


def test_all_characters_that_paths_do_not_take() -> None:
    with session(dump_of(high_precision_tensor=True)) as folder:
        show('a/b\\c:d*e?f"g<h>i|j k.l', torch.ones(1))
        assert dumps(folder) == ["rank_0/iter_000007/a_b_c_d_e_f_g_h_i_j_k_l_activation.pt"]


def test_an_existing_file_is_overwritten_with_a_message() -> None:
    with session(dump_of(high_precision_tensor=True)) as folder:
        show("layer", torch.zeros(1))
        assert "Overwriting" not in messages(folder)
        show("layer", torch.ones(1))
        assert "Overwriting existing dump file" in messages(folder)
        dump = torch.load(folder / "tensor_dumps" / dumps(folder)[0])
    assert dump["high_precision"] == 1


def test_what_is_not_there_is_skipped_with_a_message() -> None:
    with session(dump_of(high_precision_tensor=True, quantized_tensor=True)) as folder:
        show("layer", torch.ones(1))
        assert "quantized_tensor is True but activation has none to save. Skip" in messages(folder)
        assert list(torch.load(folder / "tensor_dumps" / dumps(folder)[0])) == ["high_precision"]
    bare = nfp.MXFP8Quantizer(E4M3)
    bare.internal = True
    with session(dump_of(quantized_tensor=True)) as folder:
        show("layer", None, bare(torch.ones(32, 32)))  # a storage cannot be saved
        assert "quantized_tensor is True but activation has none to save" in messages(folder)
        assert dumps(folder) == []
    with session(dump_of(high_precision_tensor=True)) as folder:
        show("layer", None)
        assert "high_precision_tensor is True but activation has none" in messages(folder)
        assert dumps(folder) == []


def test_nothing_wanted_is_no_file() -> None:
    with session(dump_of()) as folder:
        show("layer", torch.ones(1))
        assert "Nothing to dump" in messages(folder) and dumps(folder) == []


def test_two_quantized_tensors_are_too_many() -> None:
    quantizer = nfp.MXFP8Quantizer(E4M3)
    pair = [quantizer(torch.ones(32, 32)) for _ in range(2)]
    with session(dump_of(quantized_tensor=True)):
        with pytest.raises(
            ValueError,
            match="^.* DumpTensors expects rowwise_quantized_tensor and "
            "columnwise_quantized_tensor to be the same object when both are "
            r"provided\.$",
        ):
            show("layer", None, *pair)


@pytest.mark.parametrize(("end", "last"), [(-1, (True, 3)), (2, (True, None)), (1, (False, None))])
def test_an_end_of_minus_one_is_none(end: int, last: tuple) -> None:
    with session(dump_of(high_precision_tensor=True, end_step=end)):
        asked = te().inspect_tensor_enabled("layer", tensor_name="activation", iteration=2)
        assert asked == last


# Modified operands.

PAIR = {"gemms": ["fprop"], "tensors": ["weight"]}


def modify(tensor: torch.Tensor, quantizer: Any = None, **more: Any) -> Any:
    return te().modify_tensor(
        "layer",
        gemm="fprop",
        tensor_name="weight",
        tensor=tensor,
        default_quantizer=quantizer,
        iteration=0,
        **more,
    )


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_fake_quant_modifies(dtype: torch.dtype | None, cached: bool) -> None:
    x = torch.randn(32, 32)
    with session(section(FakeQuant={**PAIR, "quant_format": "MXFP8E5M2"})):
        for _ in range(2 if cached else 1):
            values = modify(x, dtype=dtype) if dtype else modify(x)
    wanted = debug.fake_quantize(x, "MXFP8E5M2")
    assert torch.equal(values, wanted.to(dtype or x.dtype))
    assert values.dtype == (dtype or x.dtype)


def test_fake_quant_fills_out() -> None:
    x, out = torch.randn(32, 32), torch.empty(32, 32, dtype=torch.bfloat16)
    with session(section(FakeQuant={**PAIR, "quant_format": "FP8E4M3"})):
        for more in ({}, {"dtype": torch.bfloat16}):
            out.zero_()
            assert modify(x, out=out, **more) is None
            assert torch.equal(out, debug.fake_quantize(x, "FP8E4M3").bfloat16())


def delayed(dtype: nfp.DType) -> nfp.Float8Quantizer:
    return nfp.Float8Quantizer(torch.ones(1), torch.zeros(1), dtype)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_per_tensor_scaling_takes_the_default_quantizer_s_elements(dtype: nfp.DType) -> None:
    x = torch.rand(24, 2046)
    with session(section(PerTensorScaling=PAIR)) as folder:
        call = {"gemm": "fprop", "iteration": 4}
        assert te().modify_tensor_enabled("layer", tensor_name="weight", **call) == (True, 5)
        assert te().modify_tensor_enabled("layer", tensor_name="dgrad", **call) == (False, None)
        q = modify(x, delayed(dtype))
        assert "Feature=PerTensorScaling, API=process_tensor: fprop, weight" in messages(folder)
        assert te().fp8_gemm_enabled("layer", gemm="fprop", iteration=4) == (True, None)
    wanted = nfp.Float8CurrentScalingQuantizer(dtype)(x)
    assert type(q) is nfp.Float8Tensor and q._fp8_dtype == dtype
    assert torch.equal(q._data, wanted._data) and torch.equal(q._scale_inv, wanted._scale_inv)


def test_per_tensor_scaling_returns_the_type_of_the_product() -> None:
    """Covers a float32 weight under torch.autocast: its codes are those of float32."""
    x = torch.rand(32, 32) + 1
    with session(section(PerTensorScaling=PAIR)):
        own, same, other = (
            modify(x, delayed(E4M3), **more)
            for more in ({}, {"dtype": torch.float32}, {"dtype": torch.bfloat16})
        )
    assert own.dtype == same.dtype == torch.float32
    assert other.dtype == other.dequantize().dtype == torch.bfloat16
    assert torch.equal(own._data, other._data) and torch.equal(own._scale_inv, other._scale_inv)


@pytest.mark.parametrize("columnwise", [True, False])
def test_per_tensor_scaling_fills_out(columnwise: bool) -> None:
    x = torch.randn(8, 16)
    quantizer = delayed(E4M3)
    quantizer.set_usage(rowwise=True, columnwise=columnwise)
    out = quantizer(torch.ones(8, 16))
    with session(section(PerTensorScaling=PAIR)):
        assert modify(x.t().contiguous().t(), quantizer, out=out) is None
    wanted = nfp.Float8CurrentScalingQuantizer(E4M3)(x)
    assert torch.equal(out._data, wanted._data) and torch.equal(out._scale_inv, wanted._scale_inv)
    assert out.get_usages()["columnwise"] is columnwise
    if columnwise:
        assert torch.equal(out._transpose, wanted._transpose)


@pytest.mark.parametrize(
    "quantizer", [None, nfp.MXFP8Quantizer(E4M3), nfp.Float8CurrentScalingQuantizer(E4M3)]
)
def test_per_tensor_scaling_is_for_delayed_scales(quantizer: Any) -> None:
    with session(section(PerTensorScaling=PAIR)):
        with pytest.raises(
            AssertionError,
            match=(
                r"^\[NVTORCH INSPECT ERROR\] Feature=PerTensorScaling, "
                r"API=process_tensor: Per-tensor current scaling can be used only within "
                r"`DelayedScaling` recipe autocast\. layer$"
            ),
        ):
            modify(torch.ones(32, 32), quantizer)


def test_casts_that_are_none() -> None:
    with pytest.raises(
        AssertionError, match=r"^.* Unsupported tensor type for per tensor current scaling$"
    ):
        per_tensor_cast(torch.ones(4, dtype=torch.float64), E4M3)
    with pytest.raises(
        AssertionError, match=r"^.* Only 2 FP8 types: E4M3 and E5M2 are supported in TE\.$"
    ):
        per_tensor_cast(torch.ones(4), nfp.DType.kByte)
