# SPDX-License-Identifier: Apache-2.0
"""Names of statistics that a configuration may contain, and the recipes that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from narrowfloat.debug._grammar import ERROR

COLUMNWISE = "_columnwise"
DELAYED = "fp8_delayed_scaling"
CURRENT = "fp8_current_scaling"
RECIPES = (DELAYED, CURRENT, "mxfp8", "fp8_block_scaling")
QUANTIZED = ("underflows%", "scale_inv_min", "scale_inv_max", "mse")
OVERFLOWS = "overflows%"
NVFP4 = ("underflows%", "mse")
NVFP4_PREFIX = "nvfp4_"
TENSOR = ("min", "max", "mean", "std", "l1_norm", "l2_norm", "cur_amax", "dynamic_range")
BLOCKWISE = "max_blockwise_dynamic_range"


class OldSpelling(ValueError):
    """An error for a name without its %, as in older configurations."""


def listed(config: Mapping[str, Any]) -> list[Any]:
    """Returns the statistics of a block. Errors: ValueError unless they are a list."""
    stats = config.get("stats")
    if not isinstance(stats, list | tuple):
        raise ValueError(f"{ERROR} stats must be a list of statistics, got {stats!r}.")
    return list(stats)


def is_blockwise(stat: Mapping[str, Any]) -> bool:
    """Returns whether a mapping is `max_blockwise_dynamic_range: {block_size: int > 0, dims: 1 or
    2}`.
    """
    if list(stat) != [BLOCKWISE] or not isinstance(stat[BLOCKWISE], Mapping):
        return False
    options = stat[BLOCKWISE]
    if not options.keys() <= {"block_size", "dims"}:
        return False
    if any(not isinstance(value, int) or isinstance(value, bool) for value in options.values()):
        return False
    return options.get("block_size", 1) > 0 and options.get("dims", 1) in (1, 2)


def check_tensor_statistics(stats: list[Any]) -> None:
    """Raises AssertionError for a statistic that LogTensorStats does not have."""
    for stat in stats:
        known = is_blockwise(stat) if isinstance(stat, Mapping) else stat in TENSOR
        if not known:
            raise AssertionError(
                f"{ERROR} Statistic {stat} is not supported. Supported are: "
                f"{', '.join(sorted(TENSOR))}, and {BLOCKWISE} with options."
            )


class Statistic(NamedTuple):
    """A statistic of a quantized tensor: `[<recipe>_]<name>[_columnwise]`; recipe "": not named."""

    recipe: str
    name: str
    columnwise: bool

    @property
    def direction(self) -> str:
        """The direction of the codes."""
        return "columnwise" if self.columnwise else "rowwise"

    @classmethod
    def parse(cls, stat: str) -> Statistic:
        """Returns the parts of a name. Errors: ValueError unless it is a string."""
        if not isinstance(stat, str):
            raise ValueError(
                f"{ERROR} A statistic of a quantized tensor must be a name, got {stat!r}."
            )
        prefixes = (*(f"{recipe}_" for recipe in RECIPES), NVFP4_PREFIX)
        prefix = next((prefix for prefix in prefixes if stat.startswith(prefix)), "")
        recipe, rest = prefix.removesuffix("_"), stat.removeprefix(prefix)
        return cls(recipe, rest.removesuffix(COLUMNWISE), rest.endswith(COLUMNWISE))


def check_fp8_statistic(stat: str, training: str | None) -> Statistic:
    """Returns the parsed name of a statistic that LogFp8TensorStats has under a recipe.

    training: the quantizers' recipe, "" for one without statistics, None if it is unknown.
    Errors: ValueError for an unknown name, `_columnwise` with a scale for the whole tensor,
    overflows% of a recipe other than delayed scaling, and delayed scaling under another recipe.
    """
    asked = Statistic.parse(stat)
    recipe = asked.recipe or training
    if recipe not in (*RECIPES, "", None):
        raise ValueError(f"Stat {stat} contains an unsupported recipe name: {recipe}")
    if recipe == "":
        raise ValueError(
            f"Stat {stat} does not contain a recipe name and the current recipe is not set."
        )
    if recipe in (DELAYED, CURRENT) and asked.columnwise:
        raise ValueError(
            f"Stat {stat} is not supported. Columnwise tensor statistics are not supported for "
            f"{DELAYED} and {CURRENT}."
        )
    if asked.name != OVERFLOWS or asked.columnwise or recipe not in (DELAYED, None):
        _require_name(stat, asked.name)
    if recipe == DELAYED and training not in (DELAYED, None):
        raise ValueError(f"Cannot recreate quantizer for {DELAYED}")
    return asked._replace(recipe=recipe or "")


def _require_name(stat: str, name: str) -> None:
    if name in QUANTIZED:
        return
    message = (
        f"Stat {stat} contains an unsupported stat name: {name}. "
        f"Supported: {', '.join(QUANTIZED)}, and of {DELAYED} {OVERFLOWS}."
    )
    raise (OldSpelling if f"{name}%" in (*QUANTIZED, OVERFLOWS) else ValueError)(message)


def check_fp8_statistics(stats: list[Any]) -> None:
    """Raises the errors of check_fp8_statistic() that do not depend on the recipe."""
    for stat in stats:
        check_fp8_statistic(stat, None)


def check_nvfp4_statistics(stats: list[Any]) -> None:
    """Raises ValueError for a statistic that LogNvfp4TensorStats does not have."""
    for stat in stats:
        if stat not in NVFP4:
            raise ValueError(
                f"Stat {stat} is not supported for NVFP4. Supported stats: {list(NVFP4)}"
            )
