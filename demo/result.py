# SPDX-License-Identifier: Apache-2.0
"""The results of the demo, for the model and for each scheme."""

from dataclasses import dataclass

from demo.measure import Errors


@dataclass(frozen=True)
class Baseline:
    """The model in F32, and the machine."""

    parameters: int
    megabytes: float
    machine: dict[str, str]  # output of `narrowfloat doctor --json`
    similarities: list[float]


@dataclass(frozen=True)
class Result:
    """The results of one scheme."""

    scheme: str
    element: str
    megabytes: float
    bits: float
    errors: Errors
    histogram: list[float]
    milliseconds: float
    times_copy: float
    similarities: list[float]

    def shifts(self, baseline: Baseline) -> list[float]:
        """Returns the differences of the similarities from the similarities in F32."""
        pairs = zip(self.similarities, baseline.similarities, strict=True)
        return [now - then for now, then in pairs]

    def largest_shift(self, baseline: Baseline) -> float:
        return max(abs(shift) for shift in self.shifts(baseline))
