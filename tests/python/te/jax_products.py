# SPDX-License-Identifier: Apache-2.0
"""Compares TransformerEngine's products for JAX with ours; prints the names of the checks.

usage: jax_products.py NAME...   (with several devices, for `sharded`)
"""

import narrowfloat.te  # isort: skip  (first: it makes the next import work)
import os
import sys

os.environ["NVTE_JAX_CUSTOM_CALLS"] = "true"  # operations without a CPU implementation stay off

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Traced
from transformer_engine.jax import cpp_extensions as tex
from transformer_engine.jax import dense as te_dense
from transformer_engine.jax import quantize as te
from transformer_engine.jax.cpp_extensions.topk import topk
from transformer_engine.jax.sharding import MeshResource, global_shard_guard

from narrowfloat import jax as nf

assert narrowfloat.te
MODES = ("CURRENT_TENSOR_SCALING", "MXFP8_1D_SCALING")
SIZES = [32, 0, 64, 32]
KEYS = iter(jax.random.split(jax.random.PRNGKey(0), 9))


def normal(*shape: int) -> jax.Array:
    return jax.random.normal(next(KEYS), shape, jnp.bfloat16)


X, W, BIAS, DY = normal(128, 64), normal(64, 128), normal(128), normal(128, 128)
GROUPED_W, GROUPED_BIAS = normal(4, 64, 128), normal(4, 128)


def same(ours: jax.Array, its: jax.Array) -> None:
    assert ours.dtype == its.dtype and ours.shape == its.shape
    np.testing.assert_array_equal(*(np.asarray(x).view(np.uint8) for x in (ours, its)))


def set_of(package: object, mode: str, **options: object) -> object:
    return package.QuantizerFactory.create_set(
        scaling_mode=getattr(package.ScalingMode, mode),
        fwd_dtype=jnp.float8_e4m3fn,
        bwd_dtype=jnp.float8_e5m2,
        is_2x2x=True,
        **options,
    )


def products() -> None:
    """Checks that every layout of operands gives narrowfloat's bytes."""
    layouts = [((1,), (0,)), ((1,), (1,)), ((0,), (0,)), ((0,), (1,))]
    for mode in MODES:
        for lhs_dims, rhs_dims in layouts:
            x = X if lhs_dims == (1,) else X.T
            w = W if rhs_dims == (0,) else W.T
            found = []
            for package, multiply in ((te, tex.gemm), (nf.quantize, nf.cpp_extensions.gemm)):
                sets = set_of(package, mode)
                options = {"lhs_quantizer": sets.x, "rhs_quantizer": sets.kernel}
                bias = BIAS if rhs_dims == (0,) else None
                found.append(
                    multiply(x, w, bias=bias, contracting_dims=(lhs_dims, rhs_dims), **options)
                )
            same(found[1], found[0])


def nvfp4() -> None:
    """Checks a bound, because here amaxes multiply the sum, and in our products each scale."""
    quantizers = te.QuantizerFactory.create(
        2, te.ScalingMode.NVFP4_1D_SCALING, jnp.float4_e2m1fn, te.QuantizeLayout.ROWWISE
    )
    left, right = (
        tex.quantize(of, q, flatten_axis=-1) for of, q in zip((X, W.T), quantizers, strict=True)
    )
    found = tex.gemm(left, right, contracting_dims=((1,), (1,)), bias=BIAS)
    a, b = (np.asarray(of.dequantize(), np.float64) for of in (left, right))
    exact, most = a @ b.T + np.asarray(BIAS, np.float64), np.abs(a) @ np.abs(b.T)
    # dequantize() rounds each value to bfloat16, by 2**-8 of it, and the product is rounded too.
    error = 2 * 2.0**-8 * most * (1 + 2.0**-8)
    bound = error + 2.0**-8 * (np.abs(exact) + error)
    assert (np.abs(np.asarray(found, np.float64) - exact) <= bound).all()


def groups() -> None:
    """Checks that a layer of groups, one of them empty, and its gradients have our bytes."""
    sizes = jnp.asarray(SIZES, jnp.int32)
    for mode in MODES:
        found = []
        for package, layer in ((te, te_dense.grouped_dense), (nf.quantize, nf.grouped_dense)):
            sets = set_of(package, mode, n_groups=len(SIZES))

            def run(
                x: jax.Array, w: jax.Array, layer: object = layer, sets: object = sets
            ) -> tuple:
                return layer(x, w, sizes, bias=GROUPED_BIAS, quantizer_set=sets)

            y, pull = jax.vjp(run, X, GROUPED_W)
            found.append([y, *pull(DY)])
        for ours, its in zip(found[1], found[0], strict=True):
            same(ours, its)


def plain() -> None:
    """Checks plain products, which are float32 until the end as XLA's, and the largest entries."""
    y = tex.gemm(X, W, bias=BIAS, contracting_dims=((1,), (0,)))
    a, b = (np.asarray(of, np.float64) for of in (X, W))
    exact, most = a @ b + np.asarray(BIAS, np.float64), np.abs(a) @ np.abs(b) + 1
    # 64 products and a bias are added in float32, then rounded to bfloat16.
    bound = 66 * 2.0**-24 * most * (1 + 2.0**-8) + 2.0**-8 * np.abs(exact)
    assert (np.abs(np.asarray(y, np.float64) - exact) <= bound).all()
    values, places = topk(X, 5)
    rows = np.asarray(X, np.float32)
    assert np.array_equal(np.asarray(values, np.float32), -np.sort(-rows)[:, :5])
    assert np.array_equal(np.take_along_axis(rows, np.asarray(places), 1), np.float32(values))


def sharded() -> None:
    """Checks that a layer on several devices has one device's bytes if no sum crosses devices."""
    mesh = jax.make_mesh((2, 2), ("dp", "tp"))
    places = [jax.sharding.PartitionSpec(*names) for names in (("dp", None), (None, "tp"), ("tp",))]
    onto = [jax.sharding.NamedSharding(mesh, place) for place in places]

    for mode in MODES:
        sets = set_of(te, mode)

        def layer(x: jax.Array, w: jax.Array, bias: jax.Array, sets: object = sets) -> jax.Array:
            return te_dense.dense(x, w, bias, contracting_dims=((1,), (0,)), quantizer_set=sets)

        with global_shard_guard(MeshResource()):
            alone = jax.jit(layer)(X, W, BIAS)
        resource = MeshResource(dp_resource="dp", tp_resource="tp")
        with mesh, global_shard_guard(resource):
            given = [jax.device_put(x, to) for x, to in zip((X, W, BIAS), onto, strict=True)]
            together = [jax.jit(layer)(*given), layer(*given)]
        assert len(together[0].sharding.device_set) == 4
        for of in together:
            same(alone, jnp.asarray(np.asarray(of)))
    # Outside of jit TransformerEngine does not partition a product, but XLA and our rules do.
    quantizers = te.QuantizerFactory.create(
        2, te.ScalingMode.NVFP4_1D_SCALING, jnp.float4_e2m1fn, te.QuantizeLayout.ROWWISE
    )
    operands = [
        tex.quantize(jnp.tile(of, (4, 1)), q, flatten_axis=-1)  # a device has 256 rows
        for of, q in zip((X, W.T), quantizers, strict=True)
    ]
    found = [tex.gemm(*operands, contracting_dims=((1,), (1,)))]
    for place in (0, 1):
        spread = list(operands)
        spread[place] = jax.tree.map(
            lambda of: jax.device_put(of, onto[0]) if of.ndim == 2 else of, operands[place]
        )
        found.append(tex.gemm(*spread, contracting_dims=((1,), (1,))))
        assert len(spread[place].data.sharding.device_set) == 4
    for of in found[1:]:
        same(found[0], jnp.asarray(np.asarray(of)))


def modes() -> None:
    """Checks that a product has the mode of its trace, wherever it is lowered and partitioned."""
    mesh = jax.make_mesh((4,), ("dp",))
    rows, whole = (
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*names))
        for names in (("dp", None), ())
    )
    sets = set_of(te, "CURRENT_TENSOR_SCALING")

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return te_dense.dense(x, w, contracting_dims=((1,), (0,)), quantizer_set=sets)

    def is_fast(traced: Traced) -> bool:
        return "nf_expand_product_ffi" in traced.lower().compile().as_text()

    placed = jax.device_put(X, rows), jax.device_put(W, whole)
    with mesh, global_shard_guard(MeshResource(dp_resource="dp")):
        for operands in (placed, (X, W)):
            with nf.product_mode("fast"):
                fast = jax.jit(layer).trace(*operands)
            assert is_fast(fast)
            assert not is_fast(jax.jit(layer).trace(*operands))
        try:
            nf.product_mode("fast")
            with nf.product_mode("reproducible"):
                assert not is_fast(jax.jit(layer).trace(*placed))
        finally:
            nf.product_mode("reproducible")


CHECKS = {check.__name__: check for check in (products, nvfp4, groups, plain, sharded, modes)}
for name in sys.argv[1:]:
    CHECKS[name]()
    print(name)
