# SPDX-License-Identifier: Apache-2.0
"""Tests sharding by names, and the rules that a mode gives to partitioners."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hostile import MODE_IDS, MODES, make
from jax.experimental.custom_partitioning import BATCHING, CompoundFactor, SdyShardingRule
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from narrowfloat.jax.cpp_extensions import grouped_quantize
from narrowfloat.jax.quantize import (
    GroupedQuantizer,
    NoScaleTensor,
    QuantizeLayout,
    QuantizerFactory,
    ScalingMode,
)

BOTH = QuantizeLayout.ROWWISE_COLWISE
SHAPES = [((64, 96), -1), ((64, 2, 32), -2), ((2, 64, 32), -1), ((32, 256, 128), 1)]


def size_of(entry: object, sizes: dict[str, int]) -> int:
    parts = entry if isinstance(entry, CompoundFactor) else (entry,)
    return math.prod(sizes[part] for part in parts)


@pytest.mark.parametrize("layout", list(QuantizeLayout), ids=lambda layout: layout.name)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_rules_describe_the_shapes(
    mode: ScalingMode, dtype: str, shape: tuple[int, ...], axis: int, layout: QuantizeLayout
) -> None:
    rules = mode.get_shardy_sharding_rules(shape, "x", axis, layout)
    SdyShardingRule((rules.input_spec,), tuple(rules[1:5]), **rules.factor_sizes)
    sizes = dict(rules.factor_sizes)
    for entry, extent in zip(rules.input_spec, shape, strict=True):
        *count, last = entry if isinstance(entry, CompoundFactor) else (entry,)
        if count:
            sizes[count[0]] = extent // sizes[last]
        else:
            sizes[last] = extent
    split = axis % len(shape)
    turned = shape[split:] + shape[:split] if mode.is_colwise_transposed else shape
    scales = mode.get_scale_shape_2x(shape, False, axis, True)
    found = [
        (rules.rowwise_out_spec, shape, layout.has_rowwise),
        (rules.rowwise_scale_spec, scales[0], layout.has_rowwise and mode.is_block_scaling),
        (rules.colwise_out_spec, turned, layout.has_colwise),
        (rules.colwise_scale_spec, scales[1], layout.has_colwise and mode.is_block_scaling),
    ]
    for spec, wanted, there in found:
        if not there:
            assert len(spec) == 1 and spec[0].startswith(BATCHING)
            continue
        # A dimension of one block has a separate factor, of size 1.
        assert tuple(size_of(entry, sizes | {e: 1 for e in spec if e not in sizes
                     and isinstance(e, str)}) for entry in spec) == wanted  # fmt: skip


def test_rules_of_tiles_are_for_repeated_scales() -> None:
    mode = ScalingMode.NVFP4_2D_SCALING
    with pytest.raises(
        ValueError,
        match=r"^get_shardy_sharding_rules: NVFP4_2D_SCALING needs "
        r"broadcast_2d_scale_shape_to_1d=True$",
    ):
        mode.get_shardy_sharding_rules((64, 64), "x", broadcast_2d_scale_shape_to_1d=False)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize(("mode", "dtype"), MODES, ids=MODE_IDS)
def test_constraints_by_names(mode: ScalingMode, dtype: str, kind: AxisType) -> None:
    devices = jax.devices()[:4]
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(kind, kind), devices=devices)
    x = jax.random.normal(jax.random.key(0), (256, 256)).astype(jnp.bfloat16)
    quantizer = make(mode, dtype, BOTH)

    @jax.jit
    def quantized(x: jax.Array) -> object:
        tensor = quantizer.quantize(x)
        return tensor.apply_sharding_constraint_by_logical_axes(("data", "nowhere"))

    with jax.set_mesh(mesh):
        tensor = quantized(x)
        plain = jax.jit(
            lambda x: NoScaleTensor(x).apply_sharding_constraint_by_logical_axes(("model", None))
        )(x)
    along = {False: PartitionSpec("data"), True: PartitionSpec(None, "data")}
    halves = ((tensor.rowwise_tensor, False), (tensor.colwise_tensor, mode.is_colwise_transposed))
    for half, turned in halves:
        wanted = NamedSharding(mesh, along[turned])
        assert half.data.sharding.is_equivalent_to(wanted, 2)
        if mode.is_block_scaling:
            assert half.scale_inv.sharding.is_equivalent_to(wanted, 2)
    assert plain.data.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec("model")), 2)


def test_constraints_that_ask_for_nothing() -> None:
    x = jnp.ones((64, 64), jnp.bfloat16)
    tensor = make(*MODES[0], BOTH).quantize(x)
    for names in (None, ()):
        assert tensor.rowwise_tensor.apply_sharding_constraint_by_logical_axes(names) is (
            tensor.rowwise_tensor
        )
    outside = tensor.apply_sharding_constraint_by_logical_axes(("data", None))
    np.testing.assert_array_equal(outside.rowwise_tensor.data, tensor.rowwise_tensor.data)
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    with (
        jax.set_mesh(mesh),
        pytest.raises(
            ValueError,
            match=(
                r"^with_sharding_constraint_by_logical_axes: x needs one name per "
                r"dimension, got 1 names for 2 dimensions$"
            ),
        ),
    ):
        tensor.apply_sharding_constraint_by_logical_axes(("data",))


def test_groups_lie_flat() -> None:
    quantizer: GroupedQuantizer = QuantizerFactory.create(
        1, *MODES[0], QuantizeLayout.ROWWISE, n_groups=2
    )
    sizes = jnp.asarray([32, 32], jnp.int32)
    grouped = grouped_quantize(jnp.ones((64, 64), jnp.bfloat16), quantizer, sizes)
    with pytest.raises(
        NotImplementedError,
        match=(
            r"^apply_sharding_constraint_by_logical_axes: GroupedScaledTensor1x is "
            r"not supported, because its data have one dimension$"
        ),
    ):
        grouped.apply_sharding_constraint_by_logical_axes(("data", None))
