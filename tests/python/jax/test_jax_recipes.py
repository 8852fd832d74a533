# SPDX-License-Identifier: Apache-2.0
"""Tests recipes in JAX: the meaning of each for a layer, autocast, and sets of quantizers."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from narrowfloat.common import recipe
from narrowfloat.common.recipe import Format
from narrowfloat.jax import MeshResource, autocast, dense, fp8_autocast
from narrowfloat.jax.quantize import (
    AmaxComputeAlgo,
    QuantizeLayout,
    QuantizeMeta,
    QuantizeMetaSet,
    QuantizerFactory,
    ScalingMode,
    TensorSource,
    get_global_quantize_recipe,
    get_quantization_recipe,
    get_quantize_config_with_recipe,
    get_supported_quantization_recipes,
    is_quantize_recipe_supported,
    update_collections,
)
from narrowfloat.jax.quantize.helper import _format2dtypes
from narrowfloat.jax.sharding import global_mesh_resource

create_set = QuantizerFactory.create_set
BOTH = QuantizeLayout.ROWWISE_COLWISE
E4M3, E5M2, E2M1 = (jnp.dtype(name) for name in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"))
RUNS, TILES = ScalingMode.NVFP4_1D_SCALING, ScalingMode.NVFP4_2D_SCALING
PLAIN_NVFP4 = {"disable_rht": True, "disable_stochastic_rounding": True}

# A recipe, the modes of its three tensors, and the dtypes of its two passes.
MEANINGS = [
    (recipe.DelayedScaling(), [ScalingMode.DELAYED_TENSOR_SCALING] * 3, E4M3, E5M2),
    (
        recipe.DelayedScaling(fp8_format=Format.E4M3),
        [ScalingMode.DELAYED_TENSOR_SCALING] * 3,
        E4M3,
        E4M3,
    ),
    (recipe.Float8CurrentScaling(), [ScalingMode.CURRENT_TENSOR_SCALING] * 3, E4M3, E5M2),
    (recipe.MXFP8BlockScaling(), [ScalingMode.MXFP8_1D_SCALING] * 3, E4M3, E4M3),
    (recipe.NVFP4BlockScaling(), [RUNS, TILES, RUNS], E2M1, E2M1),
    (recipe.NVFP4BlockScaling(disable_2d_quantization=True), [RUNS] * 3, E2M1, E2M1),
]


@pytest.mark.parametrize(("made", "modes", "forward", "backward"), MEANINGS)
def test_meaning(made: recipe.Recipe, modes: list, forward: object, backward: object) -> None:
    config = get_quantize_config_with_recipe(made)
    assert config.is_fp8_enabled()
    assert [config.get_scaling_mode(source) for source in TensorSource] == modes
    assert (config.FWD_DTYPE, config.BWD_DTYPE) == (forward, backward)
    sets = create_set(fp8_recipe=made)
    for quantizer, mode, dtype in zip(
        (sets.x, sets.kernel, sets.dgrad), modes, (forward, forward, backward), strict=True
    ):
        assert (quantizer.scaling_mode, quantizer.q_dtype) == (mode, dtype)
        blocks = mode.is_block_scaling
        assert quantizer.q_layout is (BOTH if blocks else QuantizeLayout.ROWWISE)


def test_no_recipe_scales_nothing() -> None:
    config = get_quantize_config_with_recipe(None)
    assert not config.is_fp8_enabled() and config.FWD_DTYPE == config.BWD_DTYPE == jnp.bfloat16
    assert _format2dtypes(None) == (jnp.bfloat16, jnp.bfloat16)
    sets = create_set(2)
    assert [(s.x, s.kernel, s.dgrad) for s in sets] == [(None, None, None)] * 2


def test_delayed_scaling_tells_its_quantizers() -> None:
    made = recipe.DelayedScaling(margin=3, amax_history_len=5, amax_compute_algo="most_recent")
    config = get_quantize_config_with_recipe(made)
    assert (config.MARGIN, config.AMAX_HISTORY_LEN) == (3.0, 5)
    assert config.AMAX_COMPUTE_ALGO is AmaxComputeAlgo.MOST_RECENT
    quantizer = create_set(fp8_recipe=made).dgrad
    assert (quantizer.margin, quantizer.amax_compute_algo) == (3.0, AmaxComputeAlgo.MOST_RECENT)
    assert quantizer.amax_history.shape == (5,) and not quantizer.amax_history.any()
    grouped = create_set(fp8_recipe=made, n_groups=3).x
    assert [member.margin for member in grouped.quantizers] == [3.0] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"amax_compute_algo": max},
            "amax_compute_algo must be 'max' or 'most_recent' in JAX, got ",
        ),
        (
            {"scaling_factor_compute_algo": max},
            "scaling_factor_compute_algo must be None in JAX, got ",
        ),
        ({"reduce_amax": False}, "reduce_amax must be True in JAX, got False$"),
    ],
)
def test_delayed_scaling_that_jax_does_not_have(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"^DelayedScaling: {message}"):
        create_set(fp8_recipe=recipe.DelayedScaling(**options))


@pytest.mark.parametrize(
    ("made", "rule"),
    [
        (
            recipe.Float8CurrentScaling(use_power_2_scales=True),
            "use_power_2_scales must be False in JAX, got True",
        ),
        (
            recipe.MXFP8BlockScaling(enable_2d_quantization=True),
            "enable_2d_quantization must be False in JAX, got True",
        ),
        (
            recipe.NVFP4BlockScaling(nvfp4_4over6="all"),
            "nvfp4_4over6 must be 'none' in JAX, got 'all'",
        ),
        (
            recipe.NVFP4BlockScaling(row_scaled_activation=True),
            "row_scaled_activation must be False in JAX, got True",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_jax_would_leave_out_of_a_recipe_is_refused(made: recipe.Recipe, rule: str) -> None:
    with pytest.raises(ValueError, match=f"^{type(made).__name__}: {rule}$"):
        get_quantize_config_with_recipe(made)


def test_nvfp4_transforms_runs_that_have_columns() -> None:
    sets = create_set(fp8_recipe=recipe.NVFP4BlockScaling())
    assert [q.use_rht for q in (sets.x, sets.kernel, sets.dgrad)] == [True, False, True]
    assert sets.dgrad.stochastic_rounding_rng_state is None
    one = create_set(fp8_recipe=recipe.NVFP4BlockScaling(), is_2x2x=False)
    assert not (one.x.use_rht or one.dgrad.use_rht)
    off = create_set(fp8_recipe=recipe.NVFP4BlockScaling(**PLAIN_NVFP4))
    assert not (off.x.use_rht or off.dgrad.use_rht)
    assert not create_set(1, RUNS, E2M1, E2M1).x.use_rht


def test_metas_add_to_the_recipe() -> None:
    state = jnp.arange(4, dtype=jnp.uint32).reshape(1, 4)
    meta = QuantizeMeta(stochastic_rounding_rng_state=state).merge(QuantizeMeta(use_rht=False))
    metas = QuantizeMetaSet(QuantizeMeta(), QuantizeMeta(), meta)
    sets = create_set(fp8_recipe=recipe.NVFP4BlockScaling(), quantize_meta_set=metas)
    assert sets.dgrad.stochastic_rounding_rng_state is state and not sets.dgrad.use_rht
    assert sets.x.use_rht and sets.x.stochastic_rounding_rng_state is None
    assert meta.merge(meta).get_kwargs_dictionary() == meta.get_kwargs_dictionary()
    with pytest.raises(
        AssertionError,
        match=r"^QuantizeMeta: use_rht must be the same in both, got False and True$",
    ):
        meta.merge(QuantizeMeta(use_rht=True))


def test_autocast_is_a_context() -> None:
    outer, inner = recipe.MXFP8BlockScaling(), recipe.Float8CurrentScaling()
    assert get_global_quantize_recipe() is None
    with autocast(enabled=True, recipe=outer, mesh_resource=MeshResource(dp_resource="data")):
        assert get_global_quantize_recipe() is outer
        assert global_mesh_resource().dp_resource == "data"
        assert create_set().x.scaling_mode is ScalingMode.MXFP8_1D_SCALING
        with autocast(enabled=True, recipe=inner):
            assert get_global_quantize_recipe() is inner
            assert global_mesh_resource() == MeshResource()
        with autocast(enabled=False, recipe=inner):
            assert get_global_quantize_recipe() is None and create_set().x is None
        with pytest.raises(ZeroDivisionError), autocast(enabled=True):
            assert get_global_quantize_recipe() == recipe.DelayedScaling()
            raise ZeroDivisionError
        assert get_global_quantize_recipe() is outer
        assert create_set(1, RUNS, E2M1, E2M1).x.scaling_mode is RUNS
    assert get_global_quantize_recipe() is None
    with pytest.raises(
        RuntimeError, match=r"^global_mesh_resource: must be called within global_shard_guard$"
    ):
        global_mesh_resource()
    with (
        pytest.warns(DeprecationWarning, match="fp8_autocast is called autocast"),
        fp8_autocast(enabled=True, fp8_recipe=inner),
    ):
        assert get_global_quantize_recipe() is inner


def test_autocast_acts_where_a_function_is_traced() -> None:
    seen = []
    run = jax.jit(lambda x: seen.append(get_global_quantize_recipe()) or x)
    first, second = recipe.MXFP8BlockScaling(), recipe.Float8CurrentScaling()
    with autocast(enabled=True, recipe=first):
        run(1.0)
    with autocast(enabled=True, recipe=second), ThreadPoolExecutor(1) as pool:
        run(1.0)
        assert pool.submit(get_global_quantize_recipe).result() is None
    assert seen == [first]


def test_what_excludes_each_other() -> None:
    made = recipe.MXFP8BlockScaling()
    with pytest.raises(
        ValueError, match=r"^quantizer: scaling_mode and fp8_recipe must not both be given$"
    ):
        create_set(1, RUNS, fp8_recipe=made)
    with pytest.raises(
        ValueError, match=r"^quantizer: fwd_dtype and bwd_dtype must be None under a recipe$"
    ):
        create_set(fwd_dtype=E4M3, fp8_recipe=made)
    with pytest.raises(ValueError, match=r"got Float8BlockScaling$"):
        create_set(fp8_recipe=recipe.Float8BlockScaling())
    with (
        pytest.raises(ValueError, match=r"got Float8BlockScaling$"),
        autocast(enabled=True, recipe=recipe.Float8BlockScaling()),
    ):
        pass
    assert get_global_quantize_recipe() is None


def test_recipes_by_name() -> None:
    names = [type(made).__name__ for made in get_supported_quantization_recipes()]
    assert names == [
        "DelayedScaling",
        "Float8CurrentScaling",
        "MXFP8BlockScaling",
        "NVFP4BlockScaling",
    ]
    for name in names:
        assert is_quantize_recipe_supported(name) == (True, "")
        assert type(get_quantization_recipe(name=name)) is getattr(recipe, name)
    with pytest.raises(ValueError, match=r"^quantize: the recipe must be .*, got 'FP3'$"):
        is_quantize_recipe_supported("FP3")


def test_update_collections_keeps_what_is_not_replaced() -> None:
    class Frozen(dict):
        pass

    for kind in (dict, Frozen):
        original = kind(kept=1, replaced=2)
        updated = update_collections({"replaced": 3, "new": 4}, original)
        assert type(updated) is kind and updated == {"kept": 1, "replaced": 3, "new": 4}
        assert original == {"kept": 1, "replaced": 2}


@pytest.mark.parametrize(
    "made", get_supported_quantization_recipes(), ids=lambda made: type(made).__name__
)
def test_a_layer_follows_the_recipe(made: recipe.Recipe) -> None:
    x, kernel = (jax.random.normal(key, (64, 64)) for key in jax.random.split(jax.random.key(0)))
    x, kernel = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        with autocast(enabled=True, recipe=made):
            sets = create_set()
        return dense(x, kernel, quantizer_set=sets).astype(jnp.float32).var()

    value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(x, kernel)
    plain = jax.value_and_grad(lambda x, k: (x @ k).astype(jnp.float32).var(), (0, 1))
    expected, wanted = plain(x, kernel)
    # Codes of four bits err by less than a seventh of each operand, and products by sqrt(2) times
    # that. The error adds its square to the variance. It is independent of the product, so that
    # their correlation over all items is below 4 / sqrt(items).
    error = np.sqrt(2) / 7
    np.testing.assert_allclose(value, expected, rtol=error**2 + 2 * error * 4 / np.sqrt(x.size))
    for found, want in zip(gradients, wanted, strict=True):
        found, want = (np.asarray(g, np.float64).ravel() for g in (found, want))
        # An independent error of sqrt(2) / 7 leaves a cosine of 0.98. The incoming gradient, which
        # the forward pass computed, has an error of the same size, which leaves 0.96.
        assert found @ want / np.linalg.norm(found) / np.linalg.norm(want) > 0.95
