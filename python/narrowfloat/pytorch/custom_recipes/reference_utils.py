# SPDX-License-Identifier: Apache-2.0
"""Code that the references share: 4-bit codes, products, roles given as words."""

from __future__ import annotations

import enum

import torch

from narrowfloat.pytorch._reduction import reduce_max
from narrowfloat.pytorch._types import Group
from narrowfloat.pytorch.quantization.roles import QuantizerRole


class Fp4Formats(enum.Enum):
    """Formats of four bits."""

    E2M1 = "e2m1"


HIGH_PRECISION = (torch.float16, torch.bfloat16, torch.float32)

# Magnitudes of the codes 0 to 7; code 8 is the sign.
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def role_of(role: QuantizerRole | str | None) -> QuantizerRole:
    """Returns the role of an object or a word ("input", "linear_input"); None is an empty role.

    Errors: ValueError for another word.
    """
    if role is None:
        return QuantizerRole()
    if isinstance(role, QuantizerRole):
        return role
    tensor_type = role.removeprefix("linear_")
    allowed = ("input", "weight", "output", "grad_output", "grad_input")
    if tensor_type not in allowed:
        raise ValueError(
            f"quantizer factory: a role must be one of {', '.join(allowed)} (or linear_input, ...)"
            f", got {role!r}"
        )
    return QuantizerRole(module_type="linear", tensor_type=tensor_type)


def cast_to_fp4x2(x: torch.Tensor) -> torch.Tensor:
    """Rounds to the nearest E2M1 value, ties to the even code, and packs two codes in a byte.

    Shapes: (..., 2n) to uint8 (..., n); the even item takes the low half. Saturates. NaN and -0
    become code 0 (the kernels encode them as 7 and 8).
    """
    a = x.abs()
    codes = torch.zeros_like(a, dtype=torch.uint8)
    # A tie goes to the even code: a bound counts as above itself only below an even code.
    bounds = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
    for below, bound in enumerate(bounds):
        codes += (a >= bound) if below % 2 else (a > bound)
    codes += (x < 0).to(torch.uint8) * 8
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def cast_from_fp4x2(x: torch.Tensor, dq_dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns the values of packed E2M1 codes in `dq_dtype`.

    Shapes: uint8 (..., n) to (..., 2n).
    """
    codes = torch.stack((x & 0xF, x >> 4), dim=-1).flatten(-2).long()
    positive = torch.tensor(E2M1_VALUES, dtype=dq_dtype, device=x.device)
    return torch.cat((positive, -positive))[codes]


def product_in_order(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Returns x times w transposed in fp32, added up over k in order, each sum rounded once.

    Shapes: (M, K) and (N, K) to (M, N). The order of torch.matmul depends on its library. This
    order is the same as in narrowfloat.qgemm, so both have the same bits on any machine.
    """
    x, w_t = x.float(), w.float().t().contiguous()
    sums = x.new_zeros(x.shape[0], w_t.shape[1])
    for k in range(x.shape[1]):
        sums += x[:, k, None] * w_t[k]
    return sums


def high_precision_gemm_ref(
    a: torch.Tensor,
    b: torch.Tensor,
    out_dtype: torch.dtype,
    accumulate: bool = False,
    is_a_transposed: bool = False,
    is_b_transposed: bool = False,
    out: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale_alpha: float = 1.0,
) -> torch.Tensor:
    """Returns scale_alpha * a @ b, computed in fp32 and rounded once to `out_dtype`.

    Adds `bias`, and with `accumulate` also `out`, which is only read.
    Errors: AssertionError if `accumulate` has no `out`.
    """
    a = a.float().t() if is_a_transposed else a.float()
    b = b.float().t() if is_b_transposed else b.float()
    y = torch.matmul(a, b) * scale_alpha
    if bias is not None:
        y = y + bias.float()
    if accumulate:
        if out is None:
            raise AssertionError("high_precision_gemm_ref: accumulate needs out, got None")
        y = y + out.float()
    return y.to(out_dtype)


def finish_product(
    y: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None,
    out: torch.Tensor | None,
    accumulate: bool,
) -> torch.Tensor:
    """Returns an fp32 product with the bias, in the output dtype, accumulated.

    If neither bias nor result is fp32, the bias is added before rounding, else to the rounded
    result. Accumulation adds to `out` in its dtype, and returns it.
    Errors: AssertionError unless `out` is given exactly if `accumulate` is set, or if its shape or
    dtype is not the result's.
    """
    if bias is None:
        y = y.to(out_dtype)
    elif torch.float32 in (out_dtype, bias.dtype):
        y = (y.to(out_dtype) + bias).to(out_dtype)
    else:
        y = (y + bias.float()).to(out_dtype)
    if not accumulate:
        assert out is None, "qgemm: out must be None without accumulate=True"
        return y
    assert out is not None, "qgemm: accumulate=True needs out, got None"
    assert out.shape == y.shape and out.dtype == y.dtype, (
        f"qgemm: out must be {tuple(y.shape)} {y.dtype}, got {tuple(out.shape)} {out.dtype}"
    )
    return out.copy_(out + y)


def reduce_amax(amax: torch.Tensor, group: Group) -> torch.Tensor:
    """Replaces amax by the largest one of all processes of the group, and returns it."""
    assert group is not None, "quantize: with_amax_reduction needs amax_reduction_group"
    reduce_max(amax, group)
    return amax
