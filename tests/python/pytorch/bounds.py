# SPDX-License-Identifier: Apache-2.0
"""Bounds on the error of float32 arithmetic that is rounded to a result's dtype once."""

import torch

UNIT = 2.0**-24  # half an ulp of float32 at 1: the largest relative error of one rounding


def half_ulp(dtype: torch.dtype, value: torch.Tensor) -> torch.Tensor:
    """Returns half the distance between neighbours of `dtype` at float64 values."""
    info = torch.finfo(dtype)
    exponent = torch.floor(torch.log2(value.abs().clamp(min=info.smallest_normal)))
    return torch.exp2(exponent) * (info.eps / 2)


def assert_near(
    actual: torch.Tensor,
    exact: torch.Tensor,
    magnitude: torch.Tensor | float,
    roundings: int,
    label: str = "",
) -> None:
    """Checks a result against its float64 value.

    magnitude: the sum of the absolute values of the added terms, since terms may cancel.
    roundings: the largest number of float32 roundings of a term. The last rounding, to the dtype
    of the result, is not counted.
    """
    got = actual.detach().double()
    assert got.shape == exact.shape, f"{label}: {got.shape} instead of {exact.shape}"
    float32_error = roundings * UNIT * torch.as_tensor(magnitude, dtype=torch.float64)
    rounding = half_ulp(actual.dtype, torch.maximum(got.abs(), exact.abs() + float32_error))
    excess = (got - exact).abs() - (float32_error + rounding)
    same_infinity = got == exact
    worst = torch.where(same_infinity, -1.0, excess).max() if got.numel() else torch.tensor(-1.0)
    assert float(worst) <= 0, (
        f"{label}: {float((got - exact).abs().max())} off, {float(worst)} more than allowed"
    )
