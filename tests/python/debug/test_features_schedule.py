# SPDX-License-Identifier: Apache-2.0
"""Compares the iterations in which features act with a test of each single iteration."""

import itertools

import pytest
from narrowfloat.debug._schedule import Schedule
from narrowfloat.debug.features.utils import next_enabled_iter

LAST = 40


def counted(start: int | None, end: int | None, pairs: list | None, freq: int) -> list[int]:
    """Returns the enabled iterations up to LAST, each tested separately."""
    if pairs:
        intervals = [(low, LAST if high == -1 else high) for low, high in pairs]
    else:
        intervals = [(start or 0, LAST if end in (None, -1) else end)]
    return [
        step
        for step in range(LAST + 1)
        if step % freq == 0 and any(low <= step <= high for low, high in intervals)
    ]


@pytest.mark.parametrize("freq", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("start", "end", "pairs"),
    [
        *itertools.product((None, 0, 5), (None, -1, 5, 10), (None,)),
        (9, 3, [[0, 3], [8, 12]]),  # the list replaces start and end
        (None, None, [[20, 25], [2, 4]]),
        (None, None, [[0, 10], [5, 7]]),
        (None, None, [[3, 4], [10, -1]]),
    ],
)
def test_every_iteration(start: int | None, end: int | None, pairs: list | None, freq: int) -> None:
    steps = counted(start, end, pairs, freq)
    for iteration in range(LAST - 8):
        following = [step for step in steps if step > iteration]
        wanted = (iteration in steps, following[0] if following else None)
        assert next_enabled_iter(start, end, pairs, freq, iteration) == wanted, iteration


def test_the_example_of_the_specification() -> None:
    schedule = Schedule.of({"freq": 3, "start_step": 5, "end_step": 10})
    assert [schedule.at(step) for step in (0, 6, 9)] == [(False, 6), (True, 9), (True, None)]


def test_by_itself_it_is_every_iteration() -> None:
    assert Schedule.of({}).at(17) == (True, 18)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"freq": 0}, "freq must be an integer not below 1, got 0"),
        ({"freq": -2}, "freq must be an integer not below 1, got -2"),
        ({"freq": "2"}, "freq must be an integer not below 1, got '2'"),
        ({"freq": True}, "freq must be an integer not below 1, got True"),
        ({"freq": 1.5}, "freq must be an integer not below 1, got 1.5"),
        ({"start_step": -1}, "start_step must be an integer not below 0, got -1"),
        ({"start_step": [1]}, r"start_step must be an integer not below 0, got \[1\]"),
        ({"end_step": -2}, "end_step must be an integer not below -1, got -2"),
        ({"start_step": 5, "end_step": 4}, "end_step 4 is before start_step 5"),
        ({"start_end_list": 3}, "start_end_list must be a list of pairs of steps, got 3"),
        ({"start_end_list": [[1]]}, r"start_end_list must be a list of pairs of steps, got \[1\]"),
        ({"start_end_list": [1, 2]}, "start_end_list must be a list of pairs of steps, got 1"),
        ({"start_end_list": [[4, 2]]}, "end_step 2 is before start_step 4"),
        ({"start_end_list": [["a", 2]]}, "A start in start_end_list must be an integer"),
        ({"start_end_list": [[0, None]]}, "An end in start_end_list must be an integer"),
    ],
)
def test_values_that_are_none(config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule.of(config)
