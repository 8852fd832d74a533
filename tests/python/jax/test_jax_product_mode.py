# SPDX-License-Identifier: Apache-2.0
"""Tests the fast product in JAX: bfloat16 without loss, within the bound of docs/exactness.md."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hostile import FLOATS, MODE_IDS, MODES, make
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from narrowfloat.jax import dense, get_product_mode, product_mode
from narrowfloat.jax.cpp_extensions import gemm, quantize
from narrowfloat.jax.quantize import QuantizeLayout, QuantizerFactory, ScaledTensor, ScalingMode

import narrowfloat as nf

BOTH = QuantizeLayout.ROWWISE_COLWISE
M, N, K = 64, 96, 128
SHAPES = {((1,), (1,)): ((M, K), (N, K)), ((1,), (0,)): ((M, K), (K, N)),
          ((0,), (0,)): ((K, M), (K, N))}  # fmt: skip
# By type of a result: its largest relative rounding error, and its smallest normal number.
ROUNDING = {"float32": (2.0**-24, 2.0**-126), "float16": (2.0**-11, 2.0**-14),
            "bfloat16": (2.0**-8, 2.0**-126)}  # fmt: skip


def bfloat16_is_multiplied() -> bool:
    flags = open("/proc/cpuinfo").read() if os.path.exists("/proc/cpuinfo") else ""
    return "avx512_bf16" in flags or "amx_bf16" in flags


def operands(dims: tuple, mode: ScalingMode, dtype: str, spread: float = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(len(dtype))
    return [
        (rng.standard_normal(shape) * 2.0 ** rng.uniform(-spread, spread, (shape[0], 1))).astype(
            np.float32
        )
        for shape in SHAPES[dims]
    ]


def tensor(x: np.ndarray, mode: ScalingMode, dtype: str) -> ScaledTensor:
    return quantize(jnp.asarray(x), make(mode, dtype, BOTH))


def in_numpy(x: np.ndarray, mode: ScalingMode, dtype: str) -> nf.QuantizedTensor:
    given = mode is ScalingMode.DELAYED_TENSOR_SCALING
    return nf.quantize(x, mode.get_scheme(dtype), True, True, **({"scale": 1.0} if given else {}))


def values(x: np.ndarray, dim: int, mode: ScalingMode, dtype: str) -> np.ndarray:
    """Returns the values that the product reads of an operand, the summed dimension last."""
    options = {"scale": 1.0} if mode is ScalingMode.DELAYED_TENSOR_SCALING else {}
    q = nf.quantize(x, mode.get_scheme(dtype), dim == 1, dim == 0, **options)
    found = q.dequantize(np.float32).astype(np.float64)
    return found if dim == 1 else found.T


@pytest.mark.parametrize("dims", list(SHAPES), ids=str)
@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_within_the_bound(mode: ScalingMode, dtype: str, dims: tuple) -> None:
    plain = operands(dims, mode, dtype)
    left, right = (tensor(x, mode, dtype) for x in plain)
    a, b = (values(x, dim[0], mode, dtype) for x, dim in zip(plain, dims, strict=True))
    bias = np.linspace(-3, 3, N).astype(np.float32)
    exact, sums = a @ b.T + bias, np.abs(a) @ np.abs(b).T
    for out, (unit, least) in ROUNDING.items():
        with product_mode("fast"):
            found = gemm(left, right, bias, dims, dtype=FLOATS[out])
        assert found.dtype == FLOATS[out]
        # docs/exactness.md: K + 8 roundings of the sums, one of the added bias, and one of the
        # result. XLA flushes results below the type's normal numbers. A product that stays
        # reproducible is also rounded to the result's type before a float32 bias is added.
        bound = (K + 8) * 2.0**-24 * sums
        bound += (2.0**-24 + 2 * unit) * (np.abs(exact) + np.abs(bias) + bound) + 2 * least
        assert (np.abs(np.asarray(found, np.float64) - exact) <= bound).all(), out


@pytest.mark.skipif(not bfloat16_is_multiplied(), reason="the processor has no bfloat16 products")
def test_xla_multiplies_and_functions_are_traced_again() -> None:
    """Detects XLA's product by its order of sums, which changes some bits of a large product."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((256, 1024)).astype(np.float32) for _ in range(2))
    left, right = (tensor(a, *MODES[3]) for a in (x, w))
    product = jax.jit(lambda a, b: gemm(a, b, None, ((1,), (1,)), dtype=jnp.float32))
    want = nf.qgemm(in_numpy(x, *MODES[3]), in_numpy(w, *MODES[3]))
    np.testing.assert_array_equal(product(left, right), want)
    with product_mode("fast"):
        assert (np.asarray(product(left, right)) != want).any()
    np.testing.assert_array_equal(product(left, right), want)


@pytest.mark.parametrize("dims", [*SHAPES, ((0,), (1,))], ids=str)
def test_every_layout_expands_codes_in_the_fast_mode(dims: tuple) -> None:
    x = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    operand = tensor(x, *MODES[3])

    def product(a: ScaledTensor, b: ScaledTensor) -> jax.Array:
        return gemm(a, b, None, dims, dtype=jnp.float32)

    def expands() -> bool:
        return "nf_expand_product_ffi" in str(jax.make_jaxpr(product)(operand, operand))

    assert not expands()
    with product_mode("fast"):
        assert expands()
        found = np.asarray(product(operand, operand))
    values = [a.T if dim == (0,) else a for a, dim in zip((x, x), dims, strict=True)]
    want = values[0] @ values[1].T
    assert np.abs(found - want).max() <= 2**-3 * np.abs(want).max(), "rows and columns"


def test_scales_that_bfloat16_cannot_hold_give_the_reproducible_bytes() -> None:
    x, w = (a.astype(np.float32) for a in operands(((1,), (1,)), *MODES[3], spread=60))
    x, w = x * np.float32(2.0**-60), w * np.float32(2.0**60)
    left, right = (tensor(a, *MODES[3]) for a in (x, w))
    with product_mode("fast"):
        found = gemm(left, right, None, ((1,), (1,)), dtype=jnp.float32)
    want = nf.qgemm(in_numpy(x, *MODES[3]), in_numpy(w, *MODES[3]))
    np.testing.assert_array_equal(np.asarray(found).view(np.uint32), want.view(np.uint32))


def test_nan_and_infinity() -> None:
    x, w = operands(((1,), (1,)), *MODES[4])
    x[3, 5], w[2, 1] = np.nan, np.inf
    left, right = (tensor(a, *MODES[4]) for a in (x, w))
    with product_mode("fast"):
        found = np.asarray(gemm(left, right, None, ((1,), (1,)), dtype=jnp.float32))
    want = nf.qgemm(in_numpy(x, *MODES[4]), in_numpy(w, *MODES[4]))
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(want))


@pytest.mark.parametrize(("mode", "dtype"), MODES[::3], ids=MODE_IDS[::3])
def test_gradients_and_batches(mode: ScalingMode, dtype: str) -> None:
    x, w = operands(((1,), (0,)), mode, dtype)
    sets = QuantizerFactory.create_set(1, mode, dtype, dtype)

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(dense(x, w, quantizer_set=sets))

    w, stack = jnp.asarray(w), jnp.stack([x, 2 * x])
    wanted = [jax.grad(loss)(w, item) for item in stack]
    with product_mode("fast"):
        found = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(w, stack)
    for got, want, item in zip(found, wanted, stack, strict=True):
        # Two sums, in different orders, of M values of x times 1; quantizing at most doubles them.
        sums = M * 2 * float(jnp.abs(item).max())
        np.testing.assert_allclose(got, want, atol=2 * (M + 8) * 2.0**-24 * sums)


@pytest.mark.parametrize(("mode", "dtype"), MODES[::3], ids=MODE_IDS[::3])
def test_on_several_devices(mode: ScalingMode, dtype: str) -> None:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    x, w = operands(((1,), (0,)), mode, dtype)
    placed = [
        jax.device_put(jnp.asarray(a), NamedSharding(mesh, spec))
        for a, spec in ((x, P("data")), (w, P(None, "model")))
    ]

    @jax.jit
    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        operands = (quantize(a, make(mode, dtype, BOTH)) for a in (x, w))
        return gemm(*operands, None, ((1,), (0,)), dtype=jnp.float32)

    with product_mode("fast"):
        found = np.asarray(product(*placed))
    a, b = values(x, 1, mode, dtype), values(w, 0, mode, dtype)
    bound = (K + 9) * 2.0**-24 * (np.abs(a) @ np.abs(b).T)
    assert (np.abs(found - a @ b.T) <= bound).all()


def test_the_setting() -> None:
    assert get_product_mode() == "reproducible"
    try:
        product_mode("fast")
        assert get_product_mode() == "fast"
        with product_mode("reproducible"):
            assert get_product_mode() == "reproducible"
        assert get_product_mode() == "fast"
    finally:
        product_mode("reproducible")
    assert get_product_mode() == "reproducible"
    for wrong in ("slow", None):
        with pytest.raises(
            ValueError, match=f"mode must be 'reproducible' or 'fast', got '{wrong}'"
        ):
            product_mode(wrong)


def test_a_context_restores_the_option_that_jax_updated() -> None:
    try:
        jax.config.update("narrowfloat_product_mode", "fast")
        with product_mode("reproducible"):
            assert get_product_mode() == "reproducible"
        assert get_product_mode() == "fast"
        before = product_mode("fast")
        jax.config.update("narrowfloat_product_mode", "reproducible")
        with before:
            assert get_product_mode() == "fast"
        assert get_product_mode() == "reproducible"
    finally:
        jax.config.update("narrowfloat_product_mode", "reproducible")


def test_contexts_are_of_one_thread_and_end_in_any_order() -> None:
    first, second = product_mode("fast"), product_mode("fast")
    with first:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(second.__enter__).result()
            assert pool.submit(get_product_mode).result() == "fast"
            pool.submit(second.__exit__, None, None, None).result()
            assert pool.submit(get_product_mode).result() == "reproducible"
        assert get_product_mode() == "fast"
    assert get_product_mode() == "reproducible"


def test_the_environment() -> None:
    code = "import narrowfloat.jax as nfj; print(nfj.get_product_mode())"
    env = {**os.environ, "NF_PRODUCT": "fast"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (done.stdout, done.returncode) == ("fast\n", 0), done.stderr
