# SPDX-License-Identifier: Apache-2.0
"""Computes products: codes by the core, plain tensors by torch; and the steps after the sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from narrowfloat.pytorch._arrays import Operand, operand, transposed_operand
from narrowfloat.pytorch._native import column_sums
from narrowfloat.pytorch.cpp_extensions.operands import (
    Codes,
    Layout,
    Sizes,
    is_row_scaled,
    is_scheme,
    product_sizes,
)
from narrowfloat.pytorch.cpp_extensions.qgemm_operator import qgemm, qgemm_gelu
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer
from narrowfloat.pytorch.tensor.storage._scheme_storage import SchemeStorage

# The tensor that a product writes.
Output: TypeAlias = "torch.Tensor | QuantizedTensorStorage"


@dataclass(frozen=True)
class Epilogue:
    """The steps after a sum.

    With grad, gelu multiplies by its derivative at gelu_in, and a bias requests a second result:
    the sum of B's rows, or with gelu the sum of the result's rows.
    """

    out_dtype: torch.dtype
    bias: torch.Tensor | None = None
    gelu: bool = False
    gelu_in: torch.Tensor | None = None
    grad: bool = False
    alpha: float = 1.0
    beta: float | None = None
    accumulate: bool = False
    quantizer: Quantizer | None = None

    @property
    def added(self) -> torch.Tensor | None:
        """The bias that is added to the sum."""
        return None if self.grad else self.bias

    @property
    def out_factor(self) -> float:
        """The factor of the values that accumulation adds to."""
        return 1.0 if self.beta is None else self.beta

    def is_plain(self) -> bool:
        """Returns whether only bias, accumulation and dtype are set, which the core computes."""
        return not self.gelu and self.alpha == 1.0 and self.ends_plainly()

    def ends_plainly(self) -> bool:
        """Returns whether the core can write the result: no factor and no quantizer follow."""
        # Without accumulation beta is 0 or None, and scales nothing.
        beta_is_one = not self.accumulate or self.beta in (None, 1.0)
        return beta_is_one and self.quantizer is None


Result = tuple[Any, torch.Tensor | None, torch.Tensor | None]


def multiply(a: Codes, b: Codes, layout: Layout, epilogue: Epilogue, out: Output | None) -> Result:
    """Returns the product of B and A in the layout, the bias gradient, and the input of gelu.

    a, b: plain tensors, or storages of one family. out: receives the result unless it is None.
    Errors: ValueError for sizes, out or accumulation that do not fit; RuntimeError for operands of
    two families; NotImplementedError for another output quantizer.
    """
    sizes = product_sizes(a, b, layout)
    _check(a, b, sizes, epilogue, out)
    if epilogue.accumulate and epilogue.beta == 0:  # `out` is not read, as in BLAS
        epilogue = replace(epilogue, accumulate=False)
    plain: Any = out  # a plain tensor if there is no quantizer
    if epilogue.grad and epilogue.gelu and epilogue.bias is not None:
        return _gelu_and_bias_gradients(a, b, layout, epilogue, out)
    bias_grad = _bias_grad(b, epilogue) if epilogue.grad and epilogue.bias is not None else None
    if 0 in (sizes.rows, sizes.cols, sizes.inner):
        y, gelu_input = _nothing(sizes, epilogue, out, b.device), None
    elif is_row_scaled(a) or is_row_scaled(b):
        y, gelu_input = _row_scaled(a, b, layout, sizes, epilogue, plain), None
    elif epilogue.is_plain() and is_scheme(a):
        y, gelu_input = _whole_in_core(a, b, layout, sizes, epilogue, plain), None
    elif epilogue.gelu and epilogue.alpha == 1.0 and is_scheme(a):
        y, gelu_input = _gelu(a, b, layout, sizes, epilogue, out)
    elif not is_scheme(a) and not is_scheme(b) and _is_torchs(a, b, epilogue):
        y, gelu_input = _torchs(a, b, layout, epilogue).reshape(sizes.shape), None
        y = y if out is None else out.copy_(y.reshape(out.shape))
    else:
        total = _sum(a, b, layout).reshape(sizes.shape)
        y, gelu_input = _finish(total, epilogue, out)
    return y, bias_grad, gelu_input


def _check(a: Codes, b: Codes, sizes: Sizes, epilogue: Epilogue, out: Output | None) -> None:
    point = epilogue.gelu_in
    if (
        epilogue.gelu
        and epilogue.grad
        and (point is None or point.numel() != sizes.rows * sizes.cols)
    ):
        got = None if point is None else tuple(point.shape)
        raise ValueError(
            f"general_gemm: gelu with grad needs gelu_in of shape {sizes.shape}, what gelu was "
            f"applied to, got {got}"
        )
    if is_scheme(a) != is_scheme(b) or (is_scheme(a) and is_scheme(b) and a.FAMILY is not b.FAMILY):
        raise RuntimeError(
            "general_gemm: operands must have the same scaling_mode, got "
            f"{type(a).__name__} and {type(b).__name__}"
        )
    if epilogue.quantizer is not None and not getattr(
        epilogue.quantizer, "QUANTIZES_OUTPUTS", False
    ):
        raise NotImplementedError(
            f"general_gemm: {type(epilogue.quantizer).__name__} cannot quantize the output"
        )
    if not epilogue.accumulate and epilogue.beta not in (None, 0.0):
        raise ValueError(
            f"general_gemm: scale must be zero when there is no accumulation, beta is "
            f"{epilogue.beta}"
        )
    if epilogue.accumulate and (out is None or epilogue.quantizer is not None):
        raise ValueError("general_gemm: accumulate needs out to be a plain tensor")
    if out is None or epilogue.quantizer is not None:
        return
    if not out.is_contiguous():
        raise ValueError("general_gemm: Output tensor is not contiguous.")
    # Leading dimensions may be flattened.
    fits = out.shape[-1:] == sizes.shape[-1:] and out.numel() == sizes.rows * sizes.cols
    if not fits or out.dtype != epilogue.out_dtype:
        raise ValueError(
            f"general_gemm: out must be {sizes.shape} {epilogue.out_dtype}, got {tuple(out.shape)} "
            f"{out.dtype}"
        )


def _is_torchs(a: torch.Tensor, b: torch.Tensor, epilogue: Epilogue) -> bool:
    """Returns whether one operator of PyTorch computes the product: plain tensors of one dtype."""
    tensors = [a, b, *([] if epilogue.added is None else [epilogue.added])]
    return (
        epilogue.ends_plainly()
        and not epilogue.gelu
        and (epilogue.alpha == 1.0 or epilogue.added is None)
        and not epilogue.accumulate
        and all(tensor.dtype == epilogue.out_dtype for tensor in tensors)
    )


def _torchs(a: torch.Tensor, b: torch.Tensor, layout: Layout, epilogue: Epilogue) -> torch.Tensor:
    """Returns the product by the same calls as nn.Linear and its autograd, for the same bits.

    alpha multiplies the same sums before they are rounded.
    """
    bias = epilogue.added
    a = a.detach().reshape(-1, a.shape[-1])
    b = b.detach().reshape(-1, b.shape[-1])
    left, right = b.t() if layout.transb else b, a.t() if layout.transa else a
    if epilogue.alpha != 1.0:
        return torch.addmm(b.new_zeros(()), left, right, beta=0, alpha=epilogue.alpha)
    if layout.transa and not layout.transb:
        return torch.nn.functional.linear(b, a, None if bias is None else bias.detach())
    y = left @ right
    return y if bias is None else y + bias.detach()


def _bias_grad(b: Codes, epilogue: Epilogue) -> torch.Tensor:
    if not is_scheme(b) and b.dtype == epilogue.out_dtype:
        return b.detach().reshape(-1, b.shape[-1]).sum(0)
    rows = b.dequantize(torch.float32) if is_scheme(b) else b.detach().float()
    return column_sums(rows).to(epilogue.out_dtype)


def _gelu_and_bias_gradients(
    a: Codes, b: Codes, layout: Layout, epilogue: Epilogue, out: Output | None
) -> Result:
    """Returns the product times GELU's derivative, and the sum of rows: cuBLASLt's DGELU_BGRAD."""
    if epilogue.accumulate:
        raise NotImplementedError(
            "general_gemm: gelu with grad and bias needs accumulate=False, because the sums of the "
            "bias are of this gradient alone"
        )
    plain = replace(epilogue, bias=None, quantizer=None)
    quantizer = epilogue.quantizer
    y: Any = multiply(a, b, layout, plain, None if quantizer is not None else out)[0]
    bias_grad = column_sums(y.reshape(-1, y.shape[-1])).to(epilogue.out_dtype)
    if quantizer is not None:
        y = _into(quantizer, y, out)
    return y, bias_grad, None


def _into(quantizer: Quantizer, y: torch.Tensor, out: Output | None) -> Output:
    """Returns `y` quantized, in `out` or in a new tensor."""
    if out is None:
        return quantizer(y)
    filled: Any = out
    return quantizer.update_quantized(y, filled)


def _nothing(sizes: Sizes, epilogue: Epilogue, out: Output | None, device: torch.device) -> Output:
    if out is None:
        out = torch.zeros(sizes.shape, dtype=epilogue.out_dtype, device=device)
    elif not epilogue.accumulate:
        out.zero_()
    if epilogue.quantizer is None:
        return out
    assert isinstance(out, torch.Tensor)
    return epilogue.quantizer(out)


def _operands(a: Codes, b: Codes, layout: Layout) -> tuple[Operand, Operand, str]:
    """Returns the operands and the layout as arguments of the core.

    Requires: both are storages.
    """
    assert isinstance(a, SchemeStorage) and isinstance(b, SchemeStorage)
    usage_a, usage_b = layout.usages
    second = operand(a, (usage_a,))
    if layout.transa and layout.transb:
        return transposed_operand(b), second, "TN"
    text = ("T" if layout.transa else "N") + ("T" if layout.transb else "N")
    return operand(b, (usage_b,)), second, text


def _whole_in_core(
    a: Codes,
    b: Codes,
    layout: Layout,
    sizes: Sizes,
    epilogue: Epilogue,
    out: torch.Tensor | None,
) -> torch.Tensor:
    y = qgemm(
        *_operands(a, b, layout),
        (sizes.rows, sizes.cols),
        epilogue.out_dtype,
        epilogue.added,
        out,
        epilogue.accumulate,
    )
    if out is not None:
        return out
    return y if len(sizes.shape) == 2 else y.reshape(sizes.shape)


def _gelu(
    a: Codes, b: Codes, layout: Layout, sizes: Sizes, epilogue: Epilogue, out: Output | None
) -> tuple[Any, torch.Tensor | None]:
    """Returns GELU of the product, or the product times its derivative, and GELU's input.

    The core makes both in one pass over the sums, in the result's dtype if no step follows, else in
    fp32.
    """
    first, second, text = _operands(a, b, layout)
    whole = epilogue.ends_plainly()
    gelu_in: Any = epilogue.gelu_in
    if epilogue.grad:
        whole = whole and gelu_in.dtype == epilogue.out_dtype
    dtype = epilogue.out_dtype if whole else torch.float32
    shape = (sizes.rows, sizes.cols)
    fresh: dict[str, Any] = {"dtype": dtype, "device": b.device}
    y = torch.empty(shape, **fresh) if out is None or not whole else out.reshape(shape)
    if epilogue.grad:
        points = gelu_in.detach().to(dtype).reshape(shape).contiguous()
    else:
        points = torch.empty(shape, **fresh)
    accumulates = whole and epilogue.accumulate
    qgemm_gelu(first, second, text, y, points, epilogue.grad, epilogue.added, accumulates)
    gelu_input = None if epilogue.grad else points.to(epilogue.out_dtype).reshape(sizes.shape)
    if not whole:
        return _stored(y.reshape(sizes.shape), epilogue, out), gelu_input
    return (y.reshape(sizes.shape) if out is None else out), gelu_input


def _sum(a: Codes, b: Codes, layout: Layout) -> torch.Tensor:
    """Returns the product as an fp32 matrix."""
    if is_scheme(a):
        sizes = product_sizes(a, b, layout)
        return qgemm(*_operands(a, b, layout), (sizes.rows, sizes.cols), torch.float32)
    a = a.detach().float().reshape(-1, a.shape[-1])
    b = b.detach().float().reshape(-1, b.shape[-1])
    return (b.t() if layout.transb else b) @ (a.t() if layout.transa else a)


def _finish(
    total: torch.Tensor,
    epilogue: Epilogue,
    out: Output | None,
) -> tuple[Any, torch.Tensor | None]:
    """Applies the epilogue to the fp32 sum; returns the result and the input of gelu."""
    dtype, gelu_input = epilogue.out_dtype, None
    y = total if epilogue.alpha == 1.0 else total * epilogue.alpha
    if epilogue.added is not None:
        y = y + epilogue.added.float()
    if epilogue.gelu and epilogue.grad:
        gelu_in: Any = epilogue.gelu_in
        point = gelu_in.float().reshape(y.shape)
        y = torch.ops.aten.gelu_backward(y, point, approximate="tanh")
    elif epilogue.gelu:
        gelu_input = y.to(dtype)
        y = torch.nn.functional.gelu(y, approximate="tanh")
    return _stored(y, epilogue, out), gelu_input


def _stored(y: torch.Tensor, epilogue: Epilogue, out: Output | None) -> Output:
    """Returns the fp32 matrix quantized, or accumulated and rounded."""
    if epilogue.quantizer is not None:
        return _quantized(y, epilogue, out)
    if epilogue.accumulate:
        assert isinstance(out, torch.Tensor)
        y = y + out.float().reshape(y.shape) * epilogue.out_factor
    return y.to(epilogue.out_dtype) if out is None else out.copy_(y.reshape(out.shape))


def _quantized(y: torch.Tensor, epilogue: Epilogue, out: Output | None) -> Output:
    quantizer: Any = epilogue.quantizer
    if quantizer.SCALE_IS_GIVEN and not epilogue.gelu:
        # The scale of delayed scaling is known, so the sum is quantized without a first rounding.
        if out is None:
            out = quantizer.make_empty(y.shape, dtype=epilogue.out_dtype, device=y.device)
        return quantizer.update_quantized(y, out)
    return _into(quantizer, y.to(epilogue.out_dtype), out)


def _row_scaled(
    a: Codes,
    b: Codes,
    layout: Layout,
    sizes: Sizes,
    epilogue: Epilogue,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Returns the sum plus the bias, in fp32, rounded; accumulation comes after the rounding."""
    if (
        epilogue.gelu
        or epilogue.quantizer is not None
        or (epilogue.grad and epilogue.bias is not None)
    ):
        raise AssertionError(
            "general_gemm: row-scaled NVFP4 takes no gelu, output quantizer or bias gradient"
        )
    y = _sum(a, b, layout) * epilogue.alpha
    if epilogue.added is not None:
        y = y + epilogue.added.float()
    y = y.to(epilogue.out_dtype).reshape(sizes.shape)
    if out is None:
        return y
    if epilogue.accumulate:
        y = (y.float() + out.float().reshape(y.shape) * epilogue.out_factor).to(epilogue.out_dtype)
    return out.copy_(y.reshape(out.shape))
