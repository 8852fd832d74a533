# SPDX-License-Identifier: Apache-2.0
"""Computes the iterations in which a feature acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from narrowfloat.debug._grammar import ERROR

SCHEDULE_KEYS = ("freq", "start_step", "end_step", "start_end_list")

# As an end_step: the interval has no end.
ENDLESS = -1

Interval = tuple[int, int | None]


def _require_step(value: object, name: str, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{ERROR} {name} must be an integer not below {least}, got {value!r}.")


@dataclass(frozen=True)
class Schedule:
    """The multiples of `freq` within intervals, both ends included.

    An end of None is no end.
    """

    freq: int
    intervals: tuple[Interval, ...]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Schedule:
        """Returns the schedule of a block: `freq`, `start_step`, `end_step` and `start_end_list`.

        Errors: ValueError for an invalid value.
        """
        return cls.make(
            config.get("start_step"),
            config.get("end_step"),
            config.get("start_end_list"),
            config.get("freq", 1),
        )

    @classmethod
    def make(
        cls,
        start_step: int | None,
        end_step: int | None,
        start_end_list: str | Sequence[Sequence[int]] | None,
        freq: int,
    ) -> Schedule:
        """Returns the schedule of these values; `start_end_list` replaces both steps.

        Errors: ValueError unless freq is positive, steps are 0 or more (or an end of -1, for no
        end), and no interval ends before it starts.
        """
        _require_step(freq, "freq", 1)
        if start_step is not None:
            _require_step(start_step, "start_step", 0)
        if end_step is not None:
            _require_step(end_step, "end_step", ENDLESS)
        pairs = [(start_step or 0, end_step)]
        if start_end_list:
            pairs = [_pair(entry) for entry in _list(start_end_list)]
        intervals = [(start, None if end == ENDLESS else end) for start, end in pairs]
        for start, end in intervals:
            if end is not None and end < start:
                raise ValueError(f"{ERROR} end_step {end} is before start_step {start}.")
        return cls(freq, tuple(sorted(intervals, key=lambda pair: pair[0])))

    def at(self, iteration: int) -> tuple[bool, int | None]:
        """Returns whether the feature acts in this iteration, and its next later iteration."""
        following = [self._first_in(interval, iteration + 1) for interval in self.intervals]
        return (
            any(self._first_in(interval, iteration) == iteration for interval in self.intervals),
            min((step for step in following if step is not None), default=None),
        )

    def _first_in(self, interval: Interval, begin: int) -> int | None:
        """Returns the first iteration of the interval from `begin` on that `freq` divides."""
        start, end = interval
        first = -(-max(begin, start) // self.freq) * self.freq
        return first if end is None or first <= end else None


def is_due(config: Mapping[str, Any], iteration: int) -> bool:
    """Returns whether the schedule of a block contains the iteration.

    Features are also called in iterations of other features of the layer.
    Errors: as Schedule.of.
    """
    return Schedule.of(config).at(iteration)[0]


def _list(value: object) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{ERROR} start_end_list must be a list of pairs of steps, got {value!r}.")
    return list(value)


def _pair(entry: object) -> tuple[int, int]:
    steps = list(entry) if isinstance(entry, list | tuple) else []
    if len(steps) != 2:
        raise ValueError(f"{ERROR} start_end_list must be a list of pairs of steps, got {entry!r}.")
    _require_step(steps[0], "A start in start_end_list", 0)
    _require_step(steps[1], "An end in start_end_list", ENDLESS)
    return steps[0], steps[1]
