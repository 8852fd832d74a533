# SPDX-License-Identifier: Apache-2.0
"""Tests LogFp8TensorStats and LogNvfp4TensorStats: statistics of quantized tensors."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from narrowfloat.debug._statistic_names import check_fp8_statistic
from narrowfloat.debug._statistic_values import count_nonzero_codes
from narrowfloat.debug.features.utils.stats_buffer import STATS_BUFFERS
from sessions import STORED, section, session, te

from narrowfloat import pytorch as nfp

E4M3, E5M2 = nfp.DType.kFloat8E4M3, nfp.DType.kFloat8E5M2
BARE = ["underflows%", "mse", "scale_inv_min", "scale_inv_max"]


def delayed(dtype: nfp.DType = E4M3, scale: float = 1.0) -> nfp.Float8Quantizer:
    return nfp.Float8Quantizer(torch.full((1,), scale), torch.zeros(1), dtype)


QUANTIZERS: dict[str, Callable[[], nfp.Quantizer]] = {
    "fp8_delayed_scaling": delayed,
    "fp8_current_scaling": lambda: nfp.Float8CurrentScalingQuantizer(E5M2),
    "mxfp8": lambda: nfp.MXFP8Quantizer(E4M3),
    "fp8_block_scaling": lambda: nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
}


def sample() -> torch.Tensor:
    """Returns values with zeros of both signs; small values become zero when quantized."""
    torch.manual_seed(11)
    x = torch.randn(256, 128) * torch.logspace(-12, 0, 128)
    x[0, :50], x[1, :50] = -0.0, 0.0
    return x


def log_of(*stats: str, feature: str = "LogFp8TensorStats", tensors: str = "activation") -> dict:
    return section(**{feature: {"tensors": tensors, "stats": list(stats)}})


def feed(x: torch.Tensor | None, q: Any, quantizer: Any, name: str = "activation") -> None:
    te().inspect_tensor(
        "layer",
        tensor_name=name,
        tensor=x,
        iteration=3,
        tp_group=None,
        tp_size=1,
        quantizer=quantizer,
        rowwise_quantized_tensor=q,
        columnwise_quantized_tensor=q,
    )


def flush() -> dict[str, float]:
    return {key[2]: float(value) for key, value in STATS_BUFFERS.log_stats().items()}


def underflows(x: torch.Tensor, values: torch.Tensor) -> float:
    return float((values == 0).sum() - (x == 0).sum()) / x.numel() * 100


def square_error(x: torch.Tensor, values: torch.Tensor) -> float:
    return float(((x.double() - values.double()) ** 2).mean())


@pytest.mark.parametrize("recipe", QUANTIZERS)
def test_the_recipe_that_trains(recipe: str) -> None:
    x, quantizer = sample(), QUANTIZERS[recipe]()
    q = quantizer(x)
    usages = q.get_usages()
    prefixed = [f"{recipe}_{stat}" for stat in BARE]
    with session(log_of(*BARE, *prefixed)):
        feed(x, q, quantizer)
        found = flush()
    values = q.dequantize()
    assert found["underflows%"] == pytest.approx(underflows(x, values), rel=STORED)
    assert found["underflows%"] > 0
    assert found["mse"] == pytest.approx(square_error(x, values), rel=STORED)
    scales = (q._scale_inv if hasattr(q, "_scale_inv") else q._rowwise_scale_inv).double()
    assert found["scale_inv_min"] == pytest.approx(float(scales[scales != 0].min()), rel=STORED)
    assert found["scale_inv_max"] == pytest.approx(float(scales.max()), rel=STORED)
    for stat in BARE:
        assert found[f"{recipe}_{stat}"] == found[stat]
    assert q.get_usages() == usages


def test_scales_of_mx_are_stored_exponents() -> None:
    x, quantizer = torch.ones(32, 64), QUANTIZERS["mxfp8"]()
    x[:, 32:] = 4.0
    with session(log_of("scale_inv_min", "scale_inv_max")):
        feed(x, quantizer(x), quantizer)
        found = flush()
    # 1 / 448 rounds up to 2^-8, whose byte is 127 - 8.
    assert found == {"scale_inv_min": 119, "scale_inv_max": 121}


@pytest.mark.parametrize("recipe", ["mxfp8", "fp8_block_scaling"])
@pytest.mark.parametrize("training", QUANTIZERS)
def test_columns(recipe: str, training: str) -> None:
    x, quantizer = sample(), QUANTIZERS[training]()
    stats = [f"{recipe}_{stat}_columnwise" for stat in BARE]
    with session(log_of(*stats)):
        feed(x, quantizer(x), quantizer)
        found = flush()
    elements = {"mxfp8": E4M3}.get(training, quantizer.dtype)
    again = {
        "mxfp8": nfp.MXFP8Quantizer,
        "fp8_block_scaling": nfp.Float8BlockQuantizer,
    }[recipe](elements, rowwise=False, columnwise=True)
    values = again(x).dequantize()
    assert found[stats[0]] == pytest.approx(underflows(x, values), rel=STORED)


@pytest.mark.parametrize("direction", ["rowwise", "columnwise"])
def test_a_direction_that_the_layer_did_not_make(direction: str) -> None:
    """Checks that the feature makes a missing direction and does not change the layer's tensor."""
    x = sample()
    quantizer = nfp.MXFP8Quantizer(
        E4M3, rowwise=direction != "rowwise", columnwise=direction != "columnwise"
    )
    q = quantizer(x)
    suffix = "_columnwise" if direction == "columnwise" else ""
    with session(log_of(f"underflows%{suffix}", f"scale_inv_max{suffix}")):
        feed(x, q, quantizer)
        found = flush()
    both = nfp.MXFP8Quantizer(E4M3)(x)
    both.update_usage(
        rowwise_usage=direction == "rowwise", columnwise_usage=direction == "columnwise"
    )
    assert found[f"underflows%{suffix}"] == pytest.approx(
        underflows(x, both.dequantize()), rel=STORED
    )
    assert q.get_usages()[direction] is False and quantizer.get_usages()[direction] is False


@pytest.mark.parametrize("training", QUANTIZERS)
@pytest.mark.parametrize("recipe", QUANTIZERS)
def test_another_recipe(training: str, recipe: str) -> None:
    x, quantizer = sample(), QUANTIZERS[training]()
    q = quantizer(x)
    stat = f"{recipe}_mse"
    with session(log_of(stat)):
        if recipe == "fp8_delayed_scaling" and training != recipe:
            with pytest.raises(ValueError, match="Cannot recreate quantizer for fp8_delayed"):
                feed(x, q, quantizer)
            return
        feed(x, q, quantizer)
        found = flush()
    elements = E4M3 if training == "mxfp8" else quantizer.dtype
    if training == recipe:
        values = q.dequantize()
    elif recipe == "fp8_current_scaling":
        values = nfp.Float8CurrentScalingQuantizer(elements)(x).dequantize()
    elif recipe == "mxfp8":
        values = nfp.MXFP8Quantizer(elements)(x).dequantize()
    else:
        values = nfp.Float8BlockQuantizer(elements, rowwise=True, columnwise=True)(x).dequantize()
    assert found == {stat: pytest.approx(square_error(x, values), rel=STORED)}


@pytest.mark.parametrize(("dtype", "top"), [(E4M3, 448.0), (E5M2, 57344.0)])
def test_overflows_of_delayed_scales(dtype: nfp.DType, top: float) -> None:
    x = torch.zeros(10, 10)
    x[0, 0], x[0, 1], x[0, 2], x[0, 3] = 2 * top, -2 * top, top / 2, -top / 2 * 1.0625
    quantizer = delayed(dtype, scale=2.0)
    with session(log_of("overflows%", "fp8_delayed_scaling_overflows%")):
        feed(x, quantizer(x), quantizer)
        found = flush()
    assert found == {"overflows%": 3.0, "fp8_delayed_scaling_overflows%": 3.0}


@pytest.mark.parametrize("recipe", QUANTIZERS)
def test_microbatches(recipe: str) -> None:
    quantizer = QUANTIZERS[recipe]()
    x = sample()
    # Both halves have an amax of 6, so that their scales equal the scales of the whole.
    x[0, -1], x[128, -1] = 6.0, 6.0
    x[0, :128], x[128, :128] = x[0, :128].clamp(-6, 6), x[128, :128].clamp(-6, 6)
    with session(log_of(*BARE)):
        for half in (x[:128], x[128:]):
            feed(half, quantizer(half), quantizer)
        together = flush()
        feed(x, quantizer(x), quantizer)
        once = flush()
    assert together == pytest.approx(once, rel=STORED)


def test_without_a_high_precision_tensor_there_are_scales() -> None:
    x, quantizer = sample(), QUANTIZERS["fp8_current_scaling"]()
    q = quantizer(x)
    with session(log_of("scale_inv_min", "scale_inv_max", tensors="weight")):
        feed(None, q, quantizer, "weight")
        assert flush()["scale_inv_max"] == float(q._scale_inv)
    for stat in ("underflows%", "mse", "mxfp8_mse", "mxfp8_scale_inv_min"):
        with session(log_of(stat, tensors="weight")):
            with pytest.raises(
                ValueError,
                match=f"^Stat {stat} needs the high precision tensor, and the layer keeps this one "
                "quantized only. Then there are scale_inv_min and scale_inv_max of its recipe.$",
            ):
                feed(None, q, quantizer, "weight")


@pytest.mark.parametrize(
    ("stat", "training", "message"),
    [
        ("mse_columnwise", "fp8_current_scaling", "Columnwise tensor statistics are not supported"),
        ("underflows%_columnwise", "fp8_delayed_scaling", "Columnwise tensor statistics"),
        ("overflows%", "mxfp8", "unsupported stat name: overflows%"),
        ("overflows%", "fp8_current_scaling", "unsupported stat name: overflows%"),
    ],
)
def test_statistics_that_the_recipe_has_not(stat: str, training: str, message: str) -> None:
    x, quantizer = sample(), QUANTIZERS[training]()
    with session(log_of(stat)), pytest.raises(ValueError, match=message):
        feed(x, quantizer(x), quantizer)


def test_under_nvfp4_only_other_recipes() -> None:
    x, quantizer = sample(), nfp.NVFP4Quantizer()
    q = quantizer(x)
    with session(log_of("mxfp8_mse", "fp8_current_scaling_underflows%")):
        feed(x, q, quantizer)
        found = flush()
    values = nfp.MXFP8Quantizer(E4M3)(x).dequantize()
    assert found["mxfp8_mse"] == pytest.approx(square_error(x, values), rel=STORED)
    with (
        session(log_of("mse")),
        pytest.raises(
            ValueError,
            match="^Stat .* does not contain a recipe name and the current recipe is not "
            r"set\.$",
        ),
    ):
        feed(x, q, quantizer)


@pytest.mark.parametrize("feature", ["LogFp8TensorStats", "LogNvfp4TensorStats"])
@pytest.mark.parametrize("case", ["no quantizer", "plain"])
def test_nothing_to_log_is_warned_about(feature: str, case: str) -> None:
    x = sample()
    quantizer = nfp.NVFP4Quantizer()
    q = quantizer(x) if case == "no quantizer" else x
    with session(log_of("mse" if "Nv" in feature else "mxfp8_mse", feature=feature)):
        with pytest.warns(UserWarning, match=rf"\[{feature}\] Skipping stats collection for layer"):
            feed(x, q, None if case == "no quantizer" else quantizer)
        assert flush() == {}


@pytest.mark.parametrize("feature", ["LogFp8TensorStats", "LogNvfp4TensorStats"])
def test_both_gemms_read_one_object(feature: str) -> None:
    x, quantizer = sample(), nfp.NVFP4Quantizer()
    message = f"^{feature}: rowwise and columnwise quantized tensors must be one object$"
    with session(log_of("mse", feature=feature)), pytest.raises(AssertionError, match=message):
        te().inspect_tensor(
            "layer",
            tensor_name="activation",
            tensor=x,
            iteration=0,
            tp_group=None,
            quantizer=quantizer,
            rowwise_quantized_tensor=quantizer(x),
            columnwise_quantized_tensor=quantizer(x),
        )


# NVFP4.


@pytest.mark.parametrize("wide", [False, True])
def test_nvfp4(wide: bool) -> None:
    """Counts zero codes, because in a block whose scale became zero, codes need not be zero."""
    x, quantizer = sample() if wide else torch.randn(64, 64), nfp.NVFP4Quantizer()
    x[2, :7] = 0
    q = quantizer(x)
    with session(log_of("underflows%", "mse", feature="LogNvfp4TensorStats")):
        for _ in range(2):
            feed(x, q, quantizer)
        found = flush()
    values = q.dequantize()
    nibbles = torch.stack([q._rowwise_data % 16, q._rowwise_data // 16])
    lost = int(((nibbles == 0) | (nibbles == 8)).sum() - (x == 0).sum()) / x.numel() * 100
    assert found["nvfp4_underflows%"] == pytest.approx(lost, rel=STORED) and lost > 0
    assert wide or lost == pytest.approx(underflows(x, values), rel=STORED)
    assert found["nvfp4_mse"] == pytest.approx(square_error(x, values), rel=STORED)


def test_nvfp4_of_other_formats_is_skipped() -> None:
    x, quantizer = sample(), QUANTIZERS["mxfp8"]()
    with session(log_of("mse", feature="LogNvfp4TensorStats")):
        with pytest.warns(UserWarning, match=r"expected NVFP4Quantizer, got MXFP8Quantizer"):
            feed(x, quantizer(x), quantizer)
        with pytest.warns(UserWarning, match=r"expected NVFP4TensorStorage, got MXFP8Tensor"):
            feed(x, quantizer(x), nfp.NVFP4Quantizer())
        assert flush() == {}


def test_nvfp4_needs_the_high_precision_tensor() -> None:
    quantizer = nfp.NVFP4Quantizer()
    q = quantizer(sample())
    with session(log_of("mse", feature="LogNvfp4TensorStats")):
        with pytest.raises(
            ValueError,
            match="^LogNvfp4TensorStats needs the high precision tensor, and the layer "
            r"keeps .* quantized only\.$",
        ):
            feed(None, q, quantizer)


def test_an_empty_batch() -> None:
    quantizer = QUANTIZERS["mxfp8"]()
    x = torch.empty(0, 32)
    with session(log_of(*BARE)), warnings.catch_warnings():
        warnings.simplefilter("error")
        feed(x, quantizer(x), quantizer)
        assert flush() == {}


def test_zero_codes_are_those_of_both_signs() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    for scheme in ("fp8_e4m3", "fp8_e5m2", "mxfp8_e5m2"):
        assert count_nonzero_codes(codes, scheme) == 254
    # 16 x 16 pairs of 4-bit codes, of which the codes 0 and 8 are zeros.
    assert count_nonzero_codes(codes, "nvfp4") == 2 * 256 - 2 * (2 * 16)


def test_a_recipe_must_be_known() -> None:
    with pytest.raises(ValueError) as raised:
        check_fp8_statistic("nvfp4_mse", None)
    assert str(raised.value) == "Stat nvfp4_mse contains an unsupported recipe name: nvfp4"
