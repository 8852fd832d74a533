# SPDX-License-Identifier: Apache-2.0
"""Makes quantizers for a scaling mode or a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from jax.typing import DTypeLike

from narrowfloat.common.recipe import Recipe
from narrowfloat.jax._arguments import check_kind, count_of
from narrowfloat.jax.quantize.metadata import QuantizeMeta, QuantizeMetaSet
from narrowfloat.jax.quantize.quantizer import GroupedQuantizer, Quantizer, create_quantizers
from narrowfloat.jax.quantize.recipe_config import (
    QuantizeConfig,
    TensorSource,
    get_global_quantize_recipe,
    get_quantize_config_with_recipe,
)
from narrowfloat.jax.quantize.scaling_modes import QuantizeLayout, ScalingMode
from narrowfloat.jax.quantize.tensor import pytree


@pytree(["x", "kernel", "dgrad"])
@dataclass
class QuantizerSet:
    """Quantizers of a layer's input, weight and incoming gradient; None does not quantize."""

    x: Quantizer | None
    kernel: Quantizer | None
    dgrad: Quantizer | None


noop_quantizer_set = QuantizerSet(None, None, None)

_NO_META = QuantizeMetaSet(QuantizeMeta(), QuantizeMeta(), QuantizeMeta())


class QuantizerFactory:
    """Makes one or several quantizers, or sets for layers."""

    @staticmethod
    def create(
        n_quantizers: int = 1,
        scaling_mode: ScalingMode = ScalingMode.NO_SCALING,
        q_dtype: DTypeLike | None = None,
        q_layout: QuantizeLayout = QuantizeLayout.ROWWISE_COLWISE,
        n_groups: int | None = None,
        checkpoint_name: str | None = None,
        **options: Any,
    ) -> Quantizer | tuple[Quantizer | None, ...] | None:
        """Returns one quantizer, or a tuple of several; None for NO_SCALING. `options` are fields
        of the class.

        Errors: TypeError if scaling_mode is not a ScalingMode; ValueError if n_groups is given and
        n_quantizers is not 1, if n_quantizers is negative or n_groups below 1; the errors of the
        quantizer's class.
        """
        check_kind("quantizer", "scaling_mode", scaling_mode, ScalingMode)
        n_quantizers = count_of("quantizer", "n_quantizers", n_quantizers, 0)
        if n_groups is not None:
            n_groups = count_of("quantizer", "n_groups", n_groups, 1)
        if n_groups is not None and n_quantizers != 1:
            raise ValueError(
                f"quantizer: n_quantizers must be 1 for a grouped quantizer, got {n_quantizers}"
            )
        common: dict[str, Any] = {
            "q_dtype": q_dtype,
            "q_layout": q_layout,
            "checkpoint_name": checkpoint_name,
        }
        if scaling_mode is ScalingMode.NO_SCALING:
            made: tuple[Quantizer | None, ...] = (None,) * n_quantizers
        elif n_groups is not None:
            members = create_quantizers(n_groups, scaling_mode, **common, **options)
            made = (
                GroupedQuantizer(
                    scaling_mode=scaling_mode, n_groups=n_groups, quantizers=members, **common
                ),
            )
        else:
            made = create_quantizers(n_quantizers, scaling_mode, **common, **options)
        return made[0] if n_quantizers == 1 else made

    @staticmethod
    def create_set(
        n_quantizer_sets: int = 1,
        scaling_mode: ScalingMode | None = None,
        fwd_dtype: DTypeLike | None = None,
        bwd_dtype: DTypeLike | None = None,
        is_2x2x: bool | None = None,
        n_groups: int | None = None,
        checkpoint_name: str | None = None,
        fp8_recipe: Recipe | None = None,
        quantize_meta_set: QuantizeMetaSet = _NO_META,
        **options: Any,
    ) -> QuantizerSet | tuple[QuantizerSet, ...]:
        """Returns quantizer sets for layers, from one mode and two dtypes or from a recipe.

        fwd_dtype: of x and kernel; bwd_dtype: of dgrad. fp8_recipe: without it and a mode, the
        recipe of the enclosing autocast is used. quantize_meta_set: arguments of each quantizer,
        which override the recipe's; stochastic rounding needs its `stochastic_rounding_rng_state`.
        is_2x2x: both directions of all tensors, by default for block scaling; else rowwise, and the
        kernel in the direction that forward products read. options: of all three quantizers.
        Errors: TypeError if scaling_mode is not a ScalingMode; ValueError for a recipe together
        with a mode or dtypes, a negative number of sets, and as create().
        """
        n_quantizer_sets = count_of("quantizer", "n_quantizer_sets", n_quantizer_sets, 0)
        if scaling_mode is not None and fp8_recipe is not None:
            raise ValueError("quantizer: scaling_mode and fp8_recipe must not both be given")
        if scaling_mode is None:
            recipe = get_global_quantize_recipe() if fp8_recipe is None else fp8_recipe
            config = get_quantize_config_with_recipe(recipe)
            if recipe is not None and (fwd_dtype is not None or bwd_dtype is not None):
                raise ValueError("quantizer: fwd_dtype and bwd_dtype must be None under a recipe")
        else:
            check_kind("quantizer", "scaling_mode", scaling_mode, ScalingMode)
            modes, forward, backward = (
                (scaling_mode,) * 3,
                cast(Any, fwd_dtype),
                cast(Any, bwd_dtype),
            )
            config = QuantizeConfig(modes, forward, backward, DISABLE_RHT=True)
        of_recipe = scaling_mode is None
        metas = (quantize_meta_set.x, quantize_meta_set.kernel, quantize_meta_set.grad)

        def make(source: TensorSource, meta: QuantizeMeta) -> Quantizer | None:
            mode = config.get_scaling_mode(source)
            layout = _layout(mode, source, is_2x2x)
            given = config.quantizer_options(source, layout) if of_recipe else {}
            given |= meta.get_kwargs_dictionary() | options
            dtype = config.get_dtype(source)
            made = QuantizerFactory.create(
                1, mode, dtype, layout, n_groups, checkpoint_name, **given
            )
            return cast(Quantizer | None, made)

        sets = tuple(QuantizerSet(*map(make, TensorSource, metas)) for _ in range(n_quantizer_sets))
        return sets[0] if n_quantizer_sets == 1 else sets


def _layout(mode: ScalingMode, source: TensorSource, is_2x2x: bool | None) -> QuantizeLayout:
    if mode.is_block_scaling if is_2x2x is None else is_2x2x:
        return QuantizeLayout.ROWWISE_COLWISE
    forward_reads_columns = mode.is_block_scaling and source is TensorSource.KERNEL
    return QuantizeLayout.COLWISE if forward_reads_columns else QuantizeLayout.ROWWISE
