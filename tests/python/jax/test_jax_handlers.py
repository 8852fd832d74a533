# SPDX-License-Identifier: Apache-2.0
"""Tests the handlers themselves: arguments that the runtime may pass, and their results."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from handler import (
    BOTH,
    COLWISE,
    CURRENT,
    DELAYED,
    MXFP8,
    NVFP4,
    NVFP4_2D,
    ROWWISE,
    assert_direction,
    bits,
    dbias_quantize,
    float32,
    rht_matrix,
)
from hostile import hostile

import narrowfloat as nf


def refused(code: str, message: str, call: Callable[[], object]) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        jax.block_until_ready(call())
    assert str(error.value).splitlines()[0] == f"{code}: {message}"


@pytest.mark.parametrize("layout", [ROWWISE, COLWISE, BOTH])
@pytest.mark.parametrize("mode", [DELAYED, CURRENT, MXFP8, NVFP4, NVFP4_2D])
def test_any_shape_the_core_takes(mode: int, layout: int) -> None:
    """Includes shapes that end within a block, which the Python face refuses."""
    for shape in ((2, 2), (34, 50), (130, 66), (1024, 1030)):
        x = np.random.default_rng(1).standard_normal(shape).astype(ml_dtypes.bfloat16)
        element = "e2m1" if mode in (NVFP4, NVFP4_2D) else "e4m3"
        amax = np.abs(x.astype(np.float32)).max()
        out = dbias_quantize(x, mode, element, layout, scale=0.5, amax=amax)
        options = {"scale": 0.5} if mode in (DELAYED, CURRENT) else {}
        scheme = {MXFP8: "mxfp8_e4m3", NVFP4: "nvfp4", NVFP4_2D: "nvfp4_2d"}.get(mode, "fp8_e4m3")
        q = nf.quantize(x, scheme, layout != COLWISE, layout != ROWWISE, **options)
        for columnwise in (False, True)[layout == COLWISE : 2 if layout else 1]:
            assert_direction(out, q, columnwise, f"mode {mode} shape {shape}")
        absent = {ROWWISE: ["data_t"], COLWISE: ["data"], BOTH: []}[layout]
        assert all(not getattr(out, name).any() for name in absent)


def test_the_amax_is_raised_and_never_lowered() -> None:
    x = np.full((4, 8), -3.0, np.float32)
    for before, after in [(0.0, 3.0), (2.0, 3.0), (5.0, 5.0)]:
        assert dbias_quantize(x, DELAYED, "e4m3", ROWWISE, amax=before).amax[0] == after
    assert dbias_quantize(x, MXFP8, "e4m3", ROWWISE, amax=7.0).amax[0] == 7.0
    # Subnormals count, although XLA computes without them.
    tiny = dbias_quantize(np.full((4, 8), 1e-41, np.float32), CURRENT, "e4m3", ROWWISE)
    assert tiny.amax[0] == np.float32(1e-41)


@pytest.mark.parametrize("rows", [1, 128, 129, 700])
def test_dbias_does_not_depend_on_the_workspace(rows: int) -> None:
    x = np.random.default_rng(0).standard_normal((rows, 300)).astype(np.float32)
    _, expected = nf.quantize_dbias(x, "mxfp8_e4m3")
    enough = -(-rows // 128) * 300
    for workspace in {1, enough - 1, enough, enough + 1}:
        out = dbias_quantize(x, MXFP8, "e4m3", BOTH, is_dbias=True, workspace=workspace)
        assert out.dbias.tobytes() == expected.tobytes()


def test_stochastic_rounding_reads_seed_and_offset() -> None:
    x = np.random.default_rng(0).uniform(-6, 6, (64, 128)).astype(ml_dtypes.bfloat16)
    state = np.array([3, 9, 4, 1], np.uint32)
    amax = float(np.abs(x.astype(np.float32)).max())
    options = {"seed": 3 + (9 << 32), "offset": 4 + (1 << 32), "stochastic_rounding": True}
    out = dbias_quantize(x, NVFP4_2D, "e2m1", BOTH, amax=amax, state=state)
    q = nf.quantize(x, "nvfp4_2d", True, True, **options)
    assert_direction(out, q, False, "2-D")
    assert_direction(out, q, True, "2-D")
    measured = nf.quantize(x, "nvfp4", False, True, rht=True).buffers["amax_columnwise"]
    rht = {"rht_matrix": rht_matrix(), "post_rht_amax": measured}
    out = dbias_quantize(x, NVFP4, "e2m1", BOTH, amax=amax, state=state, **rht)
    q = nf.quantize(x, "nvfp4", True, True, rht=True, **options)
    assert_direction(out, q, False, "transformed")
    assert_direction(out, q, True, "transformed")


def test_a_threads_share_shows_in_nothing() -> None:
    """Compares with one thread, on tensors that are large enough for XLA's thread pool."""
    x = hostile((1024, 2048))
    for mode, scheme in [(MXFP8, "mxfp8_e4m3"), (NVFP4, "nvfp4")]:
        amax = float(np.abs(x.astype(np.float32)).max())
        out = dbias_quantize(x, mode, "e2m1" if mode == NVFP4 else "e4m3", BOTH, amax=amax)
        q = nf.quantize(x, scheme, True, True, threads=1)
        assert_direction(out, q, False, scheme)
        assert_direction(out, q, True, scheme)


def test_e8m0_scales_may_be_bytes() -> None:
    x = hostile((64, 64))
    plain = dbias_quantize(x, MXFP8, "e5m2", BOTH)
    as_bytes = dbias_quantize(x, MXFP8, "e5m2", BOTH, scale_dtype=jnp.uint8)
    np.testing.assert_array_equal(plain.scale_inv, as_bytes.scale_inv)
    np.testing.assert_array_equal(plain.scale_inv_t, as_bytes.scale_inv_t)


X = np.ones((32, 64), np.float32)
BAD_MATRIX = np.ones((16, 16), ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        (
            "quantize: the scaling mode must quantize, got NO_SCALING",
            lambda: dbias_quantize_mode(0),
        ),
        (
            "quantize: scaling_mode must be a number from 0 to 5, got 99",
            lambda: dbias_quantize_mode(99),
        ),
        (
            "quantize: q_layout must be a number from 0 to 2, got 7",
            lambda: dbias_quantize_mode(MXFP8, q_layout=7),
        ),
        (
            "quantize: MXFP8_1D_SCALING needs e4m3 or e5m2 codes, got e2m1",
            lambda: dbias_quantize_mode(MXFP8, dtype=jnp.float4_e2m1fn),
        ),
        (
            "quantize: the output must be an 8-bit or 4-bit float, got bfloat16",
            lambda: dbias_quantize_mode(MXFP8, dtype=jnp.bfloat16),
        ),
        (
            "quantize: flatten_axis must split the dimensions in two, got 2 for shape 32x64",
            lambda: dbias_quantize_mode(MXFP8, flatten_axis=2),
        ),
        (
            "quantize: rowwise scale_inv must have 512 items, got shape 1",
            lambda: dbias_quantize_mode(MXFP8, scale_shape=(1,)),
        ),
        (
            "quantize: rowwise scale_inv must be float8_e8m0fnu, got float32",
            lambda: dbias_quantize_mode(MXFP8, scale_dtype=jnp.float32),
        ),
        (
            "quantize: the input must be float32, float16 or bfloat16, got int32",
            lambda: dbias_quantize_mode(MXFP8, x=np.ones((32, 64), np.int32)),
        ),
        (
            "quantize: mxfp8_e4m3 does not take the option 'stochastic_rounding'; it takes: "
            "columnwise, rowwise, swizzled",
            lambda: dbias_quantize(X, MXFP8, "e4m3", ROWWISE, state=np.zeros(4, np.uint32)),
        ),
        (
            "quantize: sr_rng_state must have 4 items, got shape 3",
            lambda: dbias_quantize(X, NVFP4, "e2m1", ROWWISE, state=np.zeros(3, np.uint32)),
        ),
        (
            "quantize: sr_rng_state must be uint32, got float32",
            lambda: dbias_quantize(X, NVFP4, "e2m1", ROWWISE, state=np.zeros(4, np.float32)),
        ),
        (
            "quantize: nvfp4_2d does not take the option 'rht'; it takes: amax, amax_columnwise, "
            "columnwise, e4m3_max, four_over_six, four_over_six_fast_error, offset, rowwise, seed, "
            "stochastic_rounding, swizzled",
            lambda: dbias_quantize(X, NVFP4_2D, "e2m1", BOTH, rht_matrix=rht_matrix()),
        ),
        (
            "quantize: rht_matrix must be a diagonal of signs times Sylvester's matrix of 16 over "
            "4, got 1 at row 0, column 0",
            lambda: dbias_quantize(X, NVFP4, "e2m1", BOTH, rht_matrix=BAD_MATRIX),
        ),
    ],
)
def test_refused(message: str, call: Callable[[], object]) -> None:
    refused("INVALID_ARGUMENT", message, call)


def dbias_quantize_mode(
    mode: int,
    *,
    x: np.ndarray = X,
    dtype: object = jnp.float8_e4m3fn,
    q_layout: int = ROWWISE,
    flatten_axis: int = -1,
    scale_shape: tuple[int, ...] = (128, 4),
    scale_dtype: object = jnp.float8_e8m0fnu,
) -> object:
    """Calls the handler with attributes and results that need not match."""
    like = jax.ShapeDtypeStruct
    one = like((1,), jnp.float32)
    results = (like(x.shape, dtype), like((1,), dtype), like(scale_shape, scale_dtype))
    call = jax.ffi.ffi_call(
        "te_dbias_quantize_ffi", (*results, like((1,), scale_dtype), one, one, one)
    )
    return call(
        jnp.asarray(x),
        float32(1),
        float32(0),
        jnp.zeros((0,), jnp.uint32),
        float32(0),
        jnp.zeros((1, 1), jnp.bfloat16),
        scaling_mode=np.int64(mode),
        q_layout=np.int64(q_layout),
        is_dbias=False,
        flatten_axis=np.int64(flatten_axis),
        stochastic_rounding=False,
        use_rht=False,
    )


def test_unknown_attributes_are_refused_by_the_runtime() -> None:
    like = jax.ShapeDtypeStruct((1,), jnp.float32)
    call = jax.ffi.ffi_call("te_rht_amax_ffi", (like, like))
    with pytest.raises(jax.errors.JaxRuntimeError, match="Wrong number of attributes"):
        jax.block_until_ready(call(jnp.ones((16, 2)), flatten_axis=np.int64(1)))


def rht_amax(x: np.ndarray, mask: int, regular: bool, axis: int = 1) -> tuple:
    like = jax.ShapeDtypeStruct((1,), jnp.float32)
    call = jax.ffi.ffi_call("te_rht_amax_ffi", (like, like))
    return call(
        jnp.asarray(x),
        rht_matrix_random_sign_mask_t=np.int64(mask),
        produce_regular_amax=regular,
        flatten_axis=np.int64(axis),
    )


@pytest.mark.parametrize("mask", [0, 0xD7E8, 0xFFFF])
def test_rht_amax(mask: int) -> None:
    x = hostile((64, 96))
    q = nf.quantize(x, "nvfp4", True, True, rht=True, rht_sign_mask=mask)
    amax, transformed = map(np.asarray, rht_amax(x, mask, True))
    assert amax.tobytes() == q.buffers["amax_rowwise"].tobytes()
    assert transformed.tobytes() == q.buffers["amax_columnwise"].tobytes()
    assert np.asarray(rht_amax(x, mask, False)[0])[0] == 0


def test_rht_amax_refuses() -> None:
    x = np.ones((24, 32), ml_dtypes.bfloat16)
    refused(
        "INVALID_ARGUMENT",
        "hadamard_transform: the number of rows must be a multiple of 16, got 24",
        lambda: rht_amax(x, 0, True),
    )
    refused(
        "INVALID_ARGUMENT",
        "rht_amax: rht_matrix_random_sign_mask_t must fit in 16 bits, got 65536",
        lambda: rht_amax(x, 1 << 16, True),
    )


@pytest.mark.parametrize("scheme", nf.schemes())
def test_dequantize_serves_every_scheme(scheme: str) -> None:
    x = hostile((64, 128), "float32")
    dtypes = {"e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2}
    for columnwise in (False, True):
        q = nf.quantize(x, scheme, not columnwise, columnwise)
        side = "columnwise" if columnwise else "rowwise"
        codes = q.buffers[f"{side}_data"]
        if scheme.endswith(tuple(dtypes)):
            codes = codes.view(dtypes[scheme[-4:]])
        else:
            unpacked = np.stack([codes & 0xF, codes >> 4], -1).reshape(codes.shape[0], -1)
            codes = unpacked.view(ml_dtypes.float4_e2m1fn)
        scales = q.buffers[f"{side}_scale_inv"]
        if scheme.startswith("nvfp4"):
            scales = scales.view(ml_dtypes.float8_e4m3fn)
        amax = q.buffers.get(f"amax_{side}", np.zeros(1, np.float32))
        call = jax.ffi.ffi_call("nf_dequantize_ffi", jax.ShapeDtypeStruct(x.shape, jnp.bfloat16))
        got = call(
            jnp.asarray(codes),
            jnp.asarray(scales),
            jnp.asarray(amax),
            spec=scheme + ":columnwise=1,rowwise=0" * columnwise,
            flatten_axis=np.int64(1),
        )
        assert bits(got).tobytes() == q.dequantize(ml_dtypes.bfloat16).tobytes()


def test_fake_quantize_refuses_an_output_of_another_size() -> None:
    call = jax.ffi.ffi_call("nf_fake_quantize_ffi", jax.ShapeDtypeStruct((1, 1), jnp.float32))
    refused(
        "INVALID_ARGUMENT",
        "fake_quantize: the output must have 65536 items, got shape 1x1",
        lambda: call(jnp.zeros((256, 256)), spec="mxfp8_e4m3", flatten_axis=np.int64(1)),
    )


def test_dequantize_refuses() -> None:
    call = jax.ffi.ffi_call("nf_dequantize_ffi", jax.ShapeDtypeStruct((2, 32), jnp.float32))
    data = jnp.zeros((2, 32), jnp.float8_e4m3fn)

    def run(spec: str, scales: object) -> object:
        return call(data, scales, float32(0), spec=spec, flatten_axis=np.int64(1))

    refused(
        "INVALID_ARGUMENT",
        "dequantize: spec must name one direction, the one that data holds, got "
        "'mxfp8_e4m3:columnwise=1'",
        lambda: run("mxfp8_e4m3:columnwise=1", jnp.zeros((128, 4), jnp.uint8)),
    )
    refused(
        "INVALID_ARGUMENT",
        "dequantize: scale_inv must have 512 items, got shape 2x1",
        lambda: run("mxfp8_e4m3", jnp.zeros((2, 1), jnp.uint8)),
    )
    refused(
        "INVALID_ARGUMENT",
        "dequantize: data must be float8_e5m2, got float8_e4m3fn",
        lambda: run("mxfp8_e5m2", jnp.zeros((128, 4), jnp.uint8)),
    )


def test_the_environment_is_checked_at_run_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NF_NUM_THREADS", "many")
    refused(
        "INVALID_ARGUMENT",
        "threads: NF_NUM_THREADS must be an integer from 1 to 2147483647, got 'many'",
        lambda: dbias_quantize_mode(MXFP8),
    )
