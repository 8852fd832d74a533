# SPDX-License-Identifier: Apache-2.0
"""Products of custom tensors, computed by their quantizers."""

import enum
from dataclasses import dataclass

import torch

from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer


class GEMMType(enum.Enum):
    """One of a linear layer's three products."""

    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"


@dataclass(frozen=True)
class MMParams:
    """Dtype of the result (None: given elsewhere), and whether sums are kept in fp32."""

    out_dtype: torch.dtype | None = None
    use_split_accumulator: bool = True


# The codes and scales that each product reads, of x (or dy) and of w (or x).
_OPERANDS = {
    GEMMType.FPROP: (("data", "scale"), ("data", "scale")),
    GEMMType.DGRAD: (("data", "scale"), ("data_t", "scale_t")),
    GEMMType.WGRAD: (("data_t", "scale_t"), ("data_t", "scale_t")),
}


def custom_gemm(
    A: QuantizedTensorStorage,
    B: QuantizedTensorStorage,
    workspace: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    quantization_params: Quantizer | None = None,
    gelu: bool = False,
    gelu_in: torch.Tensor | None = None,
    accumulate: bool = False,
    layout: str = "TN",
    out: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_split_accumulator: bool = False,
    grad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
    """Returns general_gemm() of two custom tensors, by `qgemm` of B's quantizer, else of A's.

    Arguments and results are general_gemm's. With `grad` and a bias the second result is the
    sum of B over rows.
    Errors: TypeError unless both are custom; ValueError without a quantizer, or if a direction that
    is read is absent; NotImplementedError for gelu, and for accumulating into a quantized result.
    """
    if not (getattr(A, "custom", False) and getattr(B, "custom", False)):
        raise TypeError(
            "custom_gemm: both operands must be custom tensors, got "
            f"{type(A).__name__} and {type(B).__name__}"
        )
    if gelu:
        raise NotImplementedError("custom_gemm: gelu is not supported")
    if quantization_params is not None and accumulate:
        raise NotImplementedError("custom_gemm: accumulate is not supported for a quantized result")
    x, w = B, A
    quantizer = x._quantizer if x._quantizer is not None else w._quantizer
    if quantizer is None:
        raise ValueError("custom_gemm: needs an operand with a quantizer, got none")
    gemm_type = _gemm_type(layout, grad)
    (qx, sx), (qw, sw) = (
        _buffers(t, names) for t, names in zip((x, w), _OPERANDS[gemm_type], strict=True)
    )
    out_dtype = x.dtype if out_dtype is None else out_dtype
    y = quantizer.qgemm(
        qx,
        qw,
        MMParams(out_dtype=out_dtype, use_split_accumulator=use_split_accumulator),
        out_dtype,
        sx,
        sw,
        None if grad else bias,
        out=out.reshape(-1, out.shape[-1]) if accumulate and out is not None else None,
        accumulate=accumulate,
        gemm_type=gemm_type,
        qresult_x=x,
        qresult_w=w,
    )
    if gemm_type is not GEMMType.WGRAD and x.original_shape is not None:
        y = y.reshape(*x.original_shape[:-1], y.shape[-1])
    bias_grad = None
    if grad and bias is not None:
        rows = x.dequantize(torch.float32)
        bias_grad = rows.reshape(-1, rows.shape[-1]).sum(0).to(out_dtype)
    if out is not None:
        y = out if accumulate else out.copy_(y.reshape(out.shape))
    if quantization_params is not None:
        y = quantization_params(y)
    return y, bias_grad, None, None


def _gemm_type(layout: str, grad: bool) -> GEMMType:
    if not grad:
        return GEMMType.FPROP
    return {"NN": GEMMType.DGRAD, "NT": GEMMType.WGRAD}.get(layout, GEMMType.FPROP)


def _buffers(
    tensor: QuantizedTensorStorage, names: tuple[str, str]
) -> tuple[torch.Tensor, torch.Tensor]:
    buffers = tuple(getattr(tensor, name) for name in names)
    for name, buffer in zip(names, buffers, strict=True):
        if buffer is None:
            raise ValueError(f"custom_gemm: {type(tensor).__name__} has no {name}")
    return buffers
