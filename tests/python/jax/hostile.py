# SPDX-License-Identifier: Apache-2.0
"""Makes inputs that show faults which uniform noise hides; compares with the NumPy face."""

import ml_dtypes
import numpy as np
from narrowfloat.jax.quantize import (
    NVFP4Quantizer,
    QuantizeLayout,
    Quantizer,
    QuantizerFactory,
    ScaledTensor,
    ScaledTensor1x,
    ScaledTensor2x,
    ScalingMode,
)

import narrowfloat as nf

FLOATS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
MODES = [
    (ScalingMode.CURRENT_TENSOR_SCALING, "float8_e4m3fn"),
    (ScalingMode.CURRENT_TENSOR_SCALING, "float8_e5m2"),
    (ScalingMode.DELAYED_TENSOR_SCALING, "float8_e4m3fn"),
    (ScalingMode.MXFP8_1D_SCALING, "float8_e4m3fn"),
    (ScalingMode.MXFP8_1D_SCALING, "float8_e5m2"),
    (ScalingMode.NVFP4_1D_SCALING, "float4_e2m1fn"),
    (ScalingMode.NVFP4_2D_SCALING, "float4_e2m1fn"),
]
MODE_IDS = [f"{mode.name}-{dtype}" for mode, dtype in MODES]


def hostile(shape: tuple[int, ...], dtype: str = "bfloat16", seed: int = 0) -> np.ndarray:
    """Returns rows of unequal magnitude, both signs, zero blocks, -0, subnormals of the dtype."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    rows = x.reshape(-1, shape[-1])
    rows *= np.logspace(-2, 2, len(rows))[:, None]
    with np.errstate(under="ignore"):
        made = x.astype(FLOATS[dtype])
    rows = made.reshape(-1, shape[-1])
    rows[len(rows) // 2, : shape[-1] // 2] = 0
    rows[0, ::3] = -0.0
    rows[1] = (
        rng.integers(1, 100, shape[-1]).astype(np.uint16).view(np.float16).astype(np.float32)
        if dtype == "float16"
        else rng.uniform(-3e-39, 3e-39, shape[-1]).astype(np.float32)
    )
    return made


def scheme_of(quantizer: Quantizer) -> str:
    return quantizer.scaling_mode.get_scheme(quantizer.q_dtype)


def make(mode: ScalingMode, dtype: str, layout: QuantizeLayout, **options: object) -> Quantizer:
    return QuantizerFactory.create(1, mode, dtype, layout, **options)


def halves(tensor: ScaledTensor) -> dict[str, ScaledTensor1x]:
    if isinstance(tensor, ScaledTensor2x):
        return {"rowwise": tensor.rowwise_tensor, "columnwise": tensor.colwise_tensor}
    return {"columnwise" if tensor.is_colwise else "rowwise": tensor}


def code_bytes(array: object) -> np.ndarray:
    host = np.asarray(array)
    if host.dtype == ml_dtypes.float4_e2m1fn:
        return host.view(np.uint8) & 0xF
    return host.view(np.uint8) if host.dtype.itemsize == 1 else host


def numpy_options(quantizer: Quantizer, scale: float) -> dict[str, object]:
    if quantizer.scaling_mode is ScalingMode.DELAYED_TENSOR_SCALING:
        return {"scale": scale}
    if isinstance(quantizer, NVFP4Quantizer) and quantizer.use_rht:
        return {"rht": True}
    return {}


def assert_numpy_bytes(
    tensor: ScaledTensor, x: np.ndarray, quantizer: Quantizer, axis: int = -1, scale: float = 1.0
) -> None:
    """Checks every leaf of `tensor` against the NumPy face, for x as a matrix split at `axis`."""
    axis %= x.ndim
    matrix = np.ascontiguousarray(x).reshape(int(np.prod(x.shape[:axis])), -1)
    found = halves(tensor)
    options = numpy_options(quantizer, scale)
    q = nf.quantize(
        matrix, scheme_of(quantizer), "rowwise" in found, "columnwise" in found, **options
    )
    for direction, half in found.items():
        codes = q.buffers[f"{direction}_data"]
        if q.scheme.startswith("nvfp4"):
            codes = np.stack([codes & 0xF, codes >> 4], -1)
        np.testing.assert_array_equal(code_bytes(half.data).reshape(-1), codes.reshape(-1))
        scales = q.buffers[f"{direction}_scale_inv"]
        got = code_bytes(half.scale_inv)
        if got.size > 1:
            count = half.scale_inv.size
            padded_cols = scales.shape[1]
            lines, blocks = content(q.scheme, matrix.shape, direction)
            assert lines * blocks == count and blocks <= padded_cols
            scales = np.ascontiguousarray(scales[:lines, :blocks])
        assert got.tobytes() == scales.tobytes(), f"{direction} scale_inv"
        name = f"amax_{direction}" if f"amax_{direction}" in q.buffers else "amax_rowwise"
        if name in q.buffers:
            assert np.asarray(half.amax).tobytes() == q.buffers[name].tobytes(), "amax"


def content(scheme: str, shape: tuple[int, int], direction: str) -> tuple[int, int]:
    """Returns rows and columns of the stored scales without padding; blocks are 32, NVFP4's 16."""
    rows, cols = shape
    if scheme.startswith("nvfp4"):
        return (rows, cols // 16) if direction == "rowwise" else (cols, rows // 16)
    return (rows, cols // 32) if direction == "rowwise" else (rows // 32, cols)
