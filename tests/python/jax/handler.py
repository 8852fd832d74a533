# SPDX-License-Identifier: Apache-2.0
"""Calls the handlers by target name, with shapes from the NumPy face's plan."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import ml_dtypes
import narrowfloat.jax as nfj
import numpy as np

import narrowfloat as nf

assert nfj.registrations()  # the targets are registered

DELAYED, MXFP8, CURRENT, NVFP4, NVFP4_2D = 1, 2, 3, 4, 5
ROWWISE, COLWISE, BOTH = 0, 1, 2
DTYPES = {"e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2, "e2m1": jnp.float4_e2m1fn}
NAMES = {
    DELAYED: "fp8_{}",
    CURRENT: "fp8_{}",
    MXFP8: "mxfp8_{}",
    NVFP4: "nvfp4",
    NVFP4_2D: "nvfp4_2d",
}
SCALES = {
    DELAYED: jnp.float32,
    CURRENT: jnp.float32,
    MXFP8: jnp.float8_e8m0fnu,
    NVFP4: jnp.float8_e4m3fn,
    NVFP4_2D: jnp.float8_e4m3fn,
}


def scheme_of(mode: int, element: str) -> str:
    return NAMES[mode].format(element)


def bits(array: jax.Array) -> np.ndarray:
    """Returns 8-bit items as bytes, 4-bit items as one byte each, and wider items unchanged."""
    host = np.asarray(array)
    if host.dtype == ml_dtypes.float4_e2m1fn:
        return host.view(np.uint8) & 0xF
    return host.view(np.uint8) if host.dtype.itemsize == 1 else host


def unpacked(codes: np.ndarray) -> np.ndarray:
    """Returns packed 4-bit codes of the NumPy face one per byte, flat."""
    return np.stack([codes & 0xF, codes >> 4], -1).reshape(-1)


def float32(value: object) -> jax.Array:
    return jnp.asarray(np.asarray(value, np.float32).reshape(1))


def dbias_quantize(
    x: np.ndarray,
    mode: int,
    element: str,
    layout: int,
    *,
    scale: object = 1.0,
    amax: object = 0.0,
    state: np.ndarray | None = None,
    post_rht_amax: object = 0.0,
    rht_matrix: np.ndarray | None = None,
    is_dbias: bool = False,
    workspace: int = 1,
    flatten_axis: int = -1,
    scale_dtype: object = None,
) -> SimpleNamespace:
    """Calls te_dbias_quantize_ffi; returns its results by name, converted by bits()."""
    scheme = scheme_of(mode, element)
    axis = flatten_axis % x.ndim
    rows, cols = math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
    rowwise, colwise = layout != COLWISE, layout != ROWWISE
    plan = nf.quantize(np.zeros((rows, cols), np.float32), scheme, rowwise, colwise).buffers
    turned = x.shape if mode == MXFP8 else x.shape[axis:] + x.shape[:axis]
    scale_dtype = SCALES[mode] if scale_dtype is None else scale_dtype
    like = jax.ShapeDtypeStruct
    one = mode in (DELAYED, CURRENT)
    absent = (1,)
    scale_shapes = [
        absent if one or f"{name}_scale_inv" not in plan else plan[f"{name}_scale_inv"].shape
        for name in ("rowwise", "columnwise")
    ]
    results = (
        like(x.shape if rowwise else (1,), DTYPES[element]),
        like(turned if colwise else (1,), DTYPES[element]),
        like(scale_shapes[0], scale_dtype),
        like(scale_shapes[1], scale_dtype),
        like((1,), jnp.float32),
        like(x.shape[axis:] if is_dbias else (1,), x.dtype),
        like((workspace,), jnp.float32),
    )
    call = jax.ffi.ffi_call("te_dbias_quantize_ffi", results, input_output_aliases={2: 4})
    out = call(
        jnp.asarray(x),
        float32(scale),
        float32(amax),
        jnp.asarray(np.zeros(0, np.uint32) if state is None else state),
        float32(post_rht_amax),
        jnp.asarray(np.zeros((1, 1), ml_dtypes.bfloat16) if rht_matrix is None else rht_matrix),
        scaling_mode=np.int64(mode),
        q_layout=np.int64(layout),
        is_dbias=is_dbias,
        flatten_axis=np.int64(flatten_axis),
        stochastic_rounding=state is not None,
        use_rht=rht_matrix is not None,
    )
    names = ["data", "data_t", "scale_inv", "scale_inv_t", "amax", "dbias", "workspace"]
    return SimpleNamespace(**dict(zip(names, map(bits, out), strict=True)))


def rht_matrix(sign_mask: int = 0xD7E8) -> np.ndarray:
    """Returns diag(signs) H / 4, H by Sylvester's construction. If bit k is set, sign k is -1."""
    matrix = np.ones((1, 1))
    for _ in range(4):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    signs = np.array([-1.0 if sign_mask >> k & 1 else 1.0 for k in range(16)])
    return (signs[:, None] * matrix / 4).astype(ml_dtypes.bfloat16)


def assert_direction(
    out: SimpleNamespace, q: nf.QuantizedTensor, columnwise: bool, what: str
) -> None:
    """Checks that codes and scales of a direction are the NumPy face's bytes, padding included."""
    suffix, direction = ("_t", "columnwise") if columnwise else ("", "rowwise")
    codes = q.buffers[f"{direction}_data"]
    packed = q.scheme.startswith("nvfp4")
    want = unpacked(codes) if packed else codes.reshape(-1)
    got = getattr(out, f"data{suffix}").reshape(-1)
    np.testing.assert_array_equal(got, want, f"{what}: {direction} data")
    scales = q.buffers[f"{direction}_scale_inv"]
    got = getattr(out, f"scale_inv{suffix}")
    assert got.reshape(-1).tobytes() == scales.tobytes(), f"{what}: {direction} scale_inv"
