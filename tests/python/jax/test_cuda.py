# SPDX-License-Identifier: Apache-2.0
"""Checks that the CUDA handlers give the CPU's bytes: same compiled functions on both devices.

Requires: JAX_PLATFORMS=cuda,cpu, and a library that was built with NF_CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import narrowfloat.jax as nfj
import numpy as np
import pytest
from handler import rht_matrix
from hostile import FLOATS, MODE_IDS, MODES, code_bytes, halves, hostile, make
from narrowfloat.jax.cpp_extensions import gemm
from narrowfloat.jax.cpp_extensions.quantization import (
    grouped_quantize,
    quantize,
    quantize_dbias,
)
from narrowfloat.jax.primitives import amax as amax_calls
from narrowfloat.jax.quantize import (
    DelayedScaleQuantizer,
    NVFP4Quantizer,
    QuantizeLayout,
    QuantizerFactory,
    ScaledTensor,
    ScalingMode,
)

import narrowfloat as nf


def find_cuda() -> jax.Device | None:
    try:
        return jax.devices("cuda")[0]
    except RuntimeError:
        return None


CUDA = find_cuda()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(CUDA is None, reason="JAX has no CUDA device"),
    pytest.mark.skipif(
        not nfj.cuda_registrations(), reason="narrowfloat was built without NF_CUDA"
    ),
]
E4M3, BOTH = jnp.float8_e4m3fn, QuantizeLayout.ROWWISE_COLWISE
NVFP4 = ScalingMode.NVFP4_1D_SCALING
LAYOUTS = list(QuantizeLayout)
modes = pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)


def run_on(device: jax.Device, function: Callable, *operands: object) -> object:
    """Returns the results of the compiled function, in the host's memory."""
    with jax.default_device(device):
        results = jax.jit(function)(*jax.device_put(operands, device))
        assert all(device in leaf.devices() for leaf in jax.tree.leaves(results))
        return jax.tree.map(np.asarray, results)


def assert_same(function: Callable, *operands: Any) -> None:
    """Checks that every result of `function` has the same bytes on CUDA as on the CPU."""
    on_cpu, on_cuda = (
        run_on(device, function, *operands) for device in (jax.devices("cpu")[0], CUDA)
    )
    wanted, structure = jax.tree.flatten_with_path(on_cpu)
    found, found_structure = jax.tree.flatten(on_cuda)
    assert structure == found_structure and wanted
    for (path, want), got in zip(wanted, found, strict=True):
        where = jax.tree_util.keystr(path)
        assert (got.shape, got.dtype) == (want.shape, want.dtype), where
        same = code_bytes(got).tobytes() == code_bytes(want).tobytes()
        assert same, f"{where}: {np.sum(code_bytes(got) != code_bytes(want))} items differ"


def parts(tensor: ScaledTensor) -> dict[str, Any]:
    """Returns a tensor's arrays; its values too, unless they need the inverse transform."""
    return {
        name: (half.data, half.scale_inv, half.amax)
        + (() if half.has_rht_applied else (half.dequantize(),))
        for name, half in halves(tensor).items()
    }


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@modes
def test_every_type_of_items(mode: ScalingMode, dtype: str, layout: QuantizeLayout) -> None:
    def run(*inputs: jax.Array) -> list:
        return [parts(quantize(x, make(mode, dtype, layout))) for x in inputs]

    assert_same(run, *(hostile((96, 160), name) for name in FLOATS))


@modes
def test_a_tensor_of_many_blocks(mode: ScalingMode, dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((1056, 2080)).astype(ml_dtypes.bfloat16)
    assert_same(lambda x: parts(quantize(x, make(mode, dtype, BOTH))), x)


@modes
def test_special_values_and_empty_tensors(mode: ScalingMode, dtype: str) -> None:
    plain = hostile((32, 64), "float32")
    inputs = [plain * np.float32(factor) for factor in (0.0, 1e-40, 1e30)]
    for special in (np.nan, np.inf, -np.inf):
        inputs.append(plain.copy())
        inputs[-1][3, 5] = special
    inputs += [np.zeros(shape, np.float32) for shape in ((0, 64), (64, 0))]
    assert_same(lambda *all: [quantize(x, make(mode, dtype, BOTH)) for x in all], *inputs)


@modes
def test_dimensions_are_split_anywhere(mode: ScalingMode, dtype: str) -> None:
    x = hostile((2, 32, 3, 64))
    assert_same(lambda x: parts(quantize(x, make(mode, dtype, BOTH), 2)), x)


@modes
def test_dbias(mode: ScalingMode, dtype: str) -> None:
    def run(*inputs: jax.Array) -> list:
        return [quantize_dbias(x, make(mode, dtype, BOTH)) for x in inputs]

    assert_same(run, *(hostile((288, 96), name) for name in FLOATS), np.zeros((0, 96), np.float32))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_hadamard_transform(layout: QuantizeLayout) -> None:
    def run(*inputs: jax.Array) -> list:
        made = [make(NVFP4, "float4_e2m1fn", layout, use_rht=True) for _ in inputs]
        return [parts(quantize(x, q)) for x, q in zip(inputs, made, strict=True)]

    assert_same(run, *(hostile((128, 256), name) for name in FLOATS))


@pytest.mark.parametrize("use_rht", [False, True])
@pytest.mark.parametrize("mode", [NVFP4, ScalingMode.NVFP4_2D_SCALING], ids=lambda m: m.name)
def test_stochastic_rounding(mode: ScalingMode, use_rht: bool) -> None:
    if use_rht and mode is not NVFP4:
        pytest.skip("the transform is for blocks of one line")

    def run(x: jax.Array, states: jax.Array) -> list:
        options = {"scaling_mode": mode, "use_rht": use_rht}
        made = [NVFP4Quantizer(stochastic_rounding_rng_state=s, **options) for s in states]
        return [parts(quantize(x, q)) for q in made]

    states = np.array([[[7, 0, 3, 0]], [[2**32 - 1, 5, 2**31, 1]]], np.uint32)
    assert_same(run, np.random.default_rng(1).uniform(-6, 6, (64, 128)).astype(np.float32), states)


@pytest.mark.parametrize("algo", ["max", "most_recent"])
def test_delayed_scaling_over_time(algo: str) -> None:
    amaxes = np.array([2.0, 16.0, 4.0, 0.0, 1.0, np.inf, 1e-40, 3.0], np.float32)

    def step(quantizer: DelayedScaleQuantizer, amax: jax.Array) -> tuple:
        tensor = quantize(jnp.full((32, 32), amax), quantizer)
        return quantizer, (tensor, quantizer.amax_history, quantizer.scale)

    def run(amaxes: jax.Array, history: jax.Array) -> tuple:
        quantizer = DelayedScaleQuantizer(E4M3, margin=1.0, amax_history=history)
        quantizer.amax_compute_algo = type(quantizer.amax_compute_algo)(algo)
        return jax.lax.scan(step, quantizer, amaxes)[1]

    for length in (1, 2, 1000):
        assert_same(run, amaxes, np.zeros(length, np.float32))


def test_scales_from_amaxes() -> None:
    special = [0.0, -1.0, np.nan, np.inf, 1e-45, 1e-40, 1e-38, 3e38]
    random = np.exp(np.random.default_rng(0).uniform(-80, 80, 4096))
    amaxes = np.concatenate([special, random]).astype(np.float32)
    old = np.arange(1, amaxes.size + 1, dtype=np.float32)
    old[2] = np.inf
    assert_same(lambda *o: amax_calls.scale_from_amax(o[0], E4M3, 0.0, o[1]), amaxes, old)
    assert_same(lambda x: amax_calls.calculate_amax(x), np.zeros((0, 4), np.float32))


@modes
def test_groups(mode: ScalingMode, dtype: str) -> None:
    def run(sizes: jax.Array, *inputs: jax.Array) -> list:
        found = []
        for x in inputs:
            quantizer = QuantizerFactory.create(1, mode, dtype, BOTH, n_groups=sizes.size)
            found += [grouped_quantize(x, quantizer, sizes), amax_calls.grouped_amax(x, sizes)]
        return found

    inputs = [hostile((128, 96), name) for name in FLOATS]
    for sizes in ([32, 0, 64, 32], [0, 128]):
        assert_same(run, np.asarray(sizes, np.int32), *inputs)


def test_groups_of_the_second_version() -> None:
    def run(x: jax.Array, sizes: jax.Array) -> list:
        like, flat = jax.ShapeDtypeStruct, (x.size,)
        scales = like((4096,), jnp.float8_e8m0fnu)
        words = like(((2 * sizes.size + 1) * 8,), jnp.uint8)
        amax = like(sizes.shape, jnp.float32)
        results = [like(flat, E4M3), like(flat, E4M3), scales, scales, amax, words]
        call = jax.ffi.ffi_call("te_grouped_quantize_v2_ffi", results)
        ones = jnp.ones(sizes.shape, jnp.float32)
        return call(x, ones, sizes, q_layout=np.int64(BOTH.value), flatten_axis=np.int64(-1))

    assert_same(run, hostile((128, 96)), np.array([32, 0, 64], np.int32))


def test_the_signs_of_a_given_matrix() -> None:
    def run(x: jax.Array, matrix: jax.Array) -> Sequence[jax.Array]:
        like, (rows, cols) = jax.ShapeDtypeStruct, x.shape
        codes, scales, one = jnp.float4_e2m1fn, jnp.float8_e4m3fn, like((1,), jnp.float32)
        results = [
            *(like((1,), codes), like((cols, rows), codes)),
            *(like((1,), scales), like((128, 4), scales)),
            *(one, like((1,), x.dtype), one),
        ]
        call = jax.ffi.ffi_call("te_dbias_quantize_ffi", results)
        amax, state = jnp.full((1,), 20.0), jnp.zeros((0,), jnp.uint32)
        return call(
            *(x, amax, amax, state, amax, matrix),
            scaling_mode=np.int64(NVFP4.value.value),
            q_layout=np.int64(QuantizeLayout.COLWISE.value),
            is_dbias=False,
            flatten_axis=np.int64(-1),
            stochastic_rounding=False,
            use_rht=True,
        )

    for signs in (0, 0xD7E8, 0x1234):
        assert_same(run, hostile((64, 128)), rht_matrix(signs))


def test_the_handler_for_values_of_one_scale() -> None:
    def run(codes: jax.Array, scale_inv: jax.Array) -> jax.Array:
        result = jax.ShapeDtypeStruct(codes.shape, jnp.float16)
        return jax.ffi.ffi_call("te_dequantize_ffi", result)(codes, scale_inv, scale_inv, scale_inv)

    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).reshape(16, 16)
    assert_same(run, codes, np.array([0.37], np.float32))


def test_fake_quantization_by_every_scheme() -> None:
    specs = [*nf.schemes(), "nvfp4:columnwise=1,rht=1,rowwise=0", "fp8_e4m3:scale=0.5"]
    assert_same(lambda x: [nfj.fake_quantize(x, spec) for spec in specs], hostile((128, 256)))


def test_a_loop_of_many_calls() -> None:
    def step(x: jax.Array, _: None) -> tuple:
        for mode, dtype in MODES:
            x = nfj.fake_quantize(x, make(mode, dtype, QuantizeLayout.ROWWISE)) * 2
        return x, x

    assert_same(lambda x: jax.lax.scan(step, x, None, length=16)[1], hostile((64, 64), "float32"))


def test_errors_of_arguments() -> None:
    call = jax.ffi.ffi_call("nf_amax_ffi", jax.ShapeDtypeStruct((2,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="amax: the output must have 1 items"):
        run_on(CUDA, call, np.ones(4, np.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="group_sizes must add up to"):
        quantizer = QuantizerFactory.create(1, *MODES[3], BOTH, n_groups=2)
        sizes = np.array([32, 32], np.int32)
        run_on(CUDA, lambda x, n: grouped_quantize(x, quantizer, n), hostile((128, 96)), sizes)


def test_products_are_refused() -> None:
    def run(x: jax.Array) -> jax.Array:
        tensor = quantize(x, make(*MODES[3], BOTH))
        return gemm(tensor, tensor, contracting_dims=((1,), (1,)))

    with pytest.raises(jax.errors.JaxRuntimeError, match="products of codes must run on the CPU"):
        run_on(CUDA, run, hostile((64, 64)))
