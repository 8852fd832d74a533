# SPDX-License-Identifier: Apache-2.0
"""Tests delayed scaling over time: recorded steps, a second implementation, wrong arguments."""

import re

import ml_dtypes
import numpy as np
import pytest
from golden import Case, assert_same, cases

import narrowfloat as nf

# Largest values as OCP OFP8 1.0 lists them.
FP8_MAX = {"e4m3": 448.0, "e5m2": 57344.0}
UPDATES = [case for case in cases("dsu") if "initial_scale" in case]
TRAININGS = [case for case in cases("dsu") if "x" in case]


def raises(error: type, message: str) -> pytest.RaisesExc:
    return pytest.raises(error, match=f"^update_delayed_scale: {re.escape(message)}$")


def test_every_case_is_one_or_the_other() -> None:
    assert len(UPDATES) + len(TRAININGS) == len(list(cases("dsu"))) == 31
    assert len(TRAININGS) == 2


@pytest.mark.parametrize("reduced", [False, True], ids=["own", "reduced"])
@pytest.mark.parametrize("case", UPDATES, ids=lambda case: case.name)
def test_recorded_steps(case: Case, reduced: bool) -> None:
    # TransformerEngine's variants disagree about a newest amax of 0; we follow the bulk kernel.
    reference = "port.kernel_bulk_reduced" if reduced else "port.kernel_bulk"
    history, scale = case["initial_history"].copy(), case["initial_scale"]
    fp8_max, margin = FP8_MAX[case.params["q_dtype"]], case.params["margin"]
    assert np.float32(fp8_max) * np.float32(2.0**-margin) == case["scaled_max"]
    for step, amax in enumerate(case["amax"]):
        history[0] = amax / np.float32(2) if reduced else amax
        history, scale = nf.update_delayed_scale(
            history,
            scale,
            fp8_max,
            margin,
            case.params["amax_compute_algo"],
            reduced_amax=amax if reduced else None,
        )
        what = f"{case.name} step {step}"
        assert_same(history, case.by(reference, "history")[step], f"{what} history")
        assert_same(scale, case.by(reference, "scale")[step], f"{what} scale")


@pytest.mark.parametrize("case", TRAININGS, ids=lambda case: case.name)
def test_recorded_training(case: Case) -> None:
    element = case.params["q_dtype"]
    history = np.zeros((case.params["history_length"], 1), np.float32)
    scale = np.ones(1, np.float32)
    for step, x in enumerate(case["x"]):
        assert_same(scale, case["scale_used"][step], f"{case.name} scale {step}")
        q = nf.quantize(x, f"fp8_{element}", scale=scale)
        assert_same(q.buffers["rowwise_data"], case["data"][step], f"{case.name} data {step}")
        assert_same(q.buffers["rowwise_scale_inv"], case["scale_inv"][step], f"{case.name} inv")
        history[0] = q.buffers["amax_rowwise"]
        assert_same(history[0], case["amax"][step], f"{case.name} amax {step}")
        history, scale = nf.update_delayed_scale(history, scale, FP8_MAX[element])
        assert_same(history, case["history_after"][step], f"{case.name} history {step}")
    assert_same(scale, case["scale_final"], f"{case.name} last scale")


def rule_of_one_column(
    history: list[np.float32], scale: np.float32, scaled_max: np.float32, algo: str, newest: object
) -> tuple[list[np.float32], np.float32]:
    """Computes the rule of docs/numerics.md, "Delayed scaling over time", step by step."""
    last = newest if newest is not None and newest != 0 else history[0]
    amax, rolled = np.float32(0), list(history)
    if last != 0:
        amax = np.fmax.reduce(np.array([amax, last, *history[1:]], np.float32))
        rolled = [np.float32(0), *history[2:], last] if len(history) > 1 else [np.float32(0)]
    used = last if algo == "most_recent" else amax
    with np.errstate(all="ignore"):
        new = scaled_max / used if np.isfinite(used) and used > 0 else scale
    return rolled, np.finfo(np.float32).max if np.isinf(new) else new


@pytest.mark.parametrize("algo", ["max", "most_recent"])
@pytest.mark.parametrize("length", [1, 2, 3, 7])
@pytest.mark.parametrize("margin", [0, 1, -3, 130])
def test_the_rule_on_hostile_amaxes(algo: str, length: int, margin: int) -> None:
    random = np.random.default_rng(length * 1000 + margin + 3)
    hostile = np.array(
        [0, -0.0, 1, 3, 448, 1e-45, 1e-38, 2e-36, 3.4e38, np.inf, -np.inf, np.nan, -2], np.float32
    )
    columns = 200
    history = random.choice(hostile, (length, columns))
    scale, reduced = random.choice(hostile, columns), random.choice(hostile, columns)
    scaled_max = np.float32(57344) * np.float32(2.0**-margin)
    for given in (None, reduced):
        new_history, new_scale = nf.update_delayed_scale(
            history, scale, 57344.0, margin, algo, reduced_amax=given
        )
        for i in range(columns):
            newest = None if given is None else given[i]
            rolled, wanted = rule_of_one_column(
                list(history[:, i]), scale[i], scaled_max, algo, newest
            )
            assert_same(new_history[:, i], np.array(rolled), f"history {i}: {history[:, i]}")
            assert_same(new_scale[i : i + 1], np.array([wanted]), f"scale {i}: {history[:, i]}")


def test_known_step() -> None:
    history = np.array([[5], [1], [2], [3]], np.float32)
    new_history, scale = nf.update_delayed_scale(history, np.ones(1, np.float32), 448)
    assert new_history.ravel().tolist() == [0, 2, 3, 5]
    assert scale.view(np.uint32) == 0x42B33333


def test_results_are_new_and_inputs_stay() -> None:
    history = np.arange(12, dtype=np.float32).reshape(4, 3)[::-1]
    given = [history, np.arange(6, dtype=np.float32)[::2], np.full(3, 2, np.float32)[::-1]]
    given[2].flags.writeable = given[0].flags.writeable = False
    before = [array.copy() for array in given]
    made = nf.update_delayed_scale(given[0], given[1], 448.0, reduced_amax=given[2])
    for array, copy in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    for array, wanted in zip(made, before, strict=False):
        assert array.shape == wanted.shape and array.dtype == np.float32
        assert array.flags.c_contiguous and array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in given)
    column_major = nf.update_delayed_scale(
        np.asfortranarray(history), given[1], 448.0, reduced_amax=given[2]
    )
    np.testing.assert_array_equal(column_major[0], made[0])


def test_margin_may_be_a_fraction_and_any_number() -> None:
    history = np.ones((1, 1), np.float32)
    for margin in (0.5, np.float32(0.5), np.array([0.5], np.float32)):
        _, scale = nf.update_delayed_scale(history, history[0], np.float64(448), margin)
        assert scale.view(np.uint32) == 0x439E6455  # 448 * fp32(2 ** -0.5), rounded


ONE = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (
            {"amax_history": ONE.astype(np.float64)},
            TypeError,
            "amax_history must be float32 in native byte order, got float64",
        ),
        (
            {"amax_history": ONE.astype(ml_dtypes.bfloat16)},
            TypeError,
            "amax_history must be float32 in native byte order, got bfloat16",
        ),
        (
            {"scale": ONE[0].astype(">f4")},
            TypeError,
            "scale must be float32 in native byte order, got >f4",
        ),
        (
            {"scale": [1.0, 1.0, 1.0]},
            TypeError,
            "scale must be a NumPy array or a CPU object with the buffer or DLPack protocol, "
            "got list",
        ),
        (
            {"reduced_amax": ONE[0].astype(np.float16)},
            TypeError,
            "reduced_amax must be float32 in native byte order, got float16",
        ),
        (
            {"amax_history": ONE[0]},
            ValueError,
            "amax_history must have shape (rows, scales) with at least one row, got 3",
        ),
        (
            {"amax_history": ONE[:0]},
            ValueError,
            "amax_history must have shape (rows, scales) with at least one row, got 0x3",
        ),
        (
            {"scale": ONE[0, :2]},
            ValueError,
            "scale must be float32 of shape 3, got float32 of shape 2",
        ),
        (
            {"scale": ONE[0, 0]},
            ValueError,
            "scale must be float32 of shape 3, got float32 of shape scalar",
        ),
        (
            {"reduced_amax": ONE[:1]},
            ValueError,
            "reduced_amax must be float32 of shape 3, got float32 of shape 1x3",
        ),
        ({"algo": "mean"}, ValueError, "algo must be 'max' or 'most_recent', got 'mean'"),
        ({"fp8_max": 0}, ValueError, "fp8_max must be positive and finite, got 0"),
        ({"fp8_max": 1e300}, ValueError, "fp8_max must be positive and finite, got inf"),
        ({"margin": np.nan}, ValueError, "margin must be finite, got nan"),
        (
            {"fp8_max": "448"},
            TypeError,
            "fp8_max must be a number, a bool or a float32 array of one element, got str",
        ),
        (
            {"margin": None},
            TypeError,
            "margin must be a number, a bool or a float32 array of one element, got NoneType",
        ),
    ],
)
def test_wrong_arguments(changed: dict[str, object], error: type, message: str) -> None:
    arguments = {"amax_history": ONE, "scale": ONE[0], "fp8_max": 448.0, **changed}
    with raises(error, message):
        nf.update_delayed_scale(**arguments)
