# SPDX-License-Identifier: Apache-2.0
"""Makes a quantizer of every kind, and compares the buffers of quantized tensors."""

from collections.abc import Callable

import torch
from torch_golden import assert_tensor

from narrowfloat import pytorch as nfp

E4M3, E5M2 = nfp.DType.kFloat8E4M3, nfp.DType.kFloat8E5M2


def delayed(fp8_dtype: nfp.DType = E4M3, scale: float = 1.0) -> nfp.Float8Quantizer:
    return nfp.Float8Quantizer(torch.full((1,), scale), torch.zeros(1), fp8_dtype)


SCHEMES: dict[str, Callable[[], nfp.Quantizer]] = {
    "float8_delayed": delayed,
    "float8_current": lambda: nfp.Float8CurrentScalingQuantizer(E4M3),
    "mxfp8": lambda: nfp.MXFP8Quantizer(E4M3),
    "mxfp8_2d": lambda: nfp.MXFP8Quantizer(E4M3, with_2d_quantization=True),
    "blockwise_1d": lambda: nfp.Float8BlockQuantizer(
        E4M3, rowwise=True, columnwise=True, block_scaling_dim=1
    ),
    "blockwise_2d": lambda: nfp.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True),
    "nvfp4": lambda: nfp.NVFP4Quantizer(),
    "nvfp4_2d": lambda: nfp.NVFP4Quantizer(with_2d_quantization=True),
    "nvfp4_row_scaled": lambda: nfp.NVFP4Quantizer(columnwise=False, row_scaled_nvfp4=True),
    "nvfp4_4over6": lambda: nfp.NVFP4Quantizer(nvfp4_use_4over6=True, nvfp4_e4m3_max=256),
}
HYBRIDS: dict[str, Callable[[], nfp.Quantizer]] = {
    "hybrid_mxfp8_identity": lambda: nfp.HybridQuantizer(
        rowwise_quantizer=nfp.MXFP8Quantizer(E4M3),
        columnwise_quantizer=nfp.IdentityQuantizer(),
    ),
    "hybrid_nvfp4_mxfp8": lambda: nfp.HybridQuantizer(
        rowwise_quantizer=nfp.NVFP4Quantizer(),
        columnwise_quantizer=nfp.MXFP8Quantizer(E4M3),
        columnwise_source="rowwise_dequantized",
    ),
}
ALL = {**SCHEMES, "identity": nfp.IdentityQuantizer, **HYBRIDS}
VALUES = [name for name in SCHEMES if name != "float8_delayed"]


def sample(
    *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False, seed: int = 5
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape or (128, 256), generator=generator).to(dtype)
    return x.requires_grad_(requires_grad)


def buffers(tensor: nfp.QuantizedTensorStorage) -> dict[str, torch.Tensor]:
    """Returns the present buffers by name; the direction is the prefix of a child's buffers."""
    if isinstance(tensor, nfp.HybridQuantizedTensorStorage):
        children = {
            "rowwise": tensor.rowwise_sub_storage,
            "columnwise": tensor.columnwise_sub_storage,
        }
        return {
            f"{direction}.{name}": buffer
            for direction, child in children.items()
            if child is not None
            for name, buffer in buffers(child).items()
        }
    named = {buffer.name: getattr(tensor, buffer.name) for buffer in tensor.BUFFERS}
    return {name: buffer for name, buffer in named.items() if buffer is not None}


def snapshot(tensor: nfp.QuantizedTensorStorage) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in buffers(tensor).items()}


def assert_same_buffers(
    actual: nfp.QuantizedTensorStorage | dict[str, torch.Tensor],
    expected: nfp.QuantizedTensorStorage | dict[str, torch.Tensor],
    what: str,
) -> None:
    """Asserts that both have the same buffers with the same bytes."""
    got = actual if isinstance(actual, dict) else buffers(actual)
    want = expected if isinstance(expected, dict) else buffers(expected)
    assert got.keys() == want.keys(), f"{what}: {sorted(got)}, expected {sorted(want)}"
    for name, buffer in want.items():
        assert_tensor(got[name], buffer, f"{what} {name}")


def assert_nothing_shared(
    first: nfp.QuantizedTensorStorage, second: nfp.QuantizedTensorStorage
) -> None:
    own = {buffer.data_ptr() for buffer in buffers(first).values()}
    for name, buffer in buffers(second).items():
        assert buffer.data_ptr() not in own, f"{name} is shared"
