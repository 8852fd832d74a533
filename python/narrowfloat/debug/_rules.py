# SPDX-License-Identifier: Apache-2.0
"""What may stand in the block of each feature: when it is loaded, called and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from narrowfloat.debug import _statistics
from narrowfloat.debug._formats import supported_formats
from narrowfloat.debug._grammar import (
    AXIS_KEYS,
    ERROR,
    USES,
)
from narrowfloat.debug._schedule import SCHEDULE_KEYS, Schedule

Narrowed = Mapping[str, Any]


def require_keys(config: Narrowed, allowed: tuple[str, ...]) -> None:
    """Errors: ValueError for the first key that is not allowed."""
    for key in config:
        if key not in allowed:
            raise ValueError(f'{ERROR} Unexpected key in config: "{key}".')


def require_flag(config: Narrowed, key: str) -> None:
    """Errors: ValueError unless the value is true or false."""
    if not isinstance(config.get(key, False), bool | int):
        raise ValueError(f"{ERROR} {key} must be True or False, got {config[key]!r}.")


@dataclass(frozen=True)
class Rules:
    """Of one feature.

    axes: "gemm", "tensor" or both, what its block must list. keys: its parameters. check: raises
    what the feature raises for a narrowed block when it is called. strict: keys for the axis that
    the feature does not look at are errors, not passed over.
    """

    axes: tuple[str, ...]
    keys: tuple[str, ...] = ()
    check: Callable[[Narrowed], None] = lambda config: None
    strict: bool = False

    def allowed(self) -> tuple[str, ...]:
        """The keys of a narrowed block."""
        return (*self.axes, *self.keys)

    def check_narrowed(self, config: Narrowed) -> None:
        """Errors: as the feature raises them when it is called with this."""
        rest = self.allowed() if self.strict else (*self.allowed(), *AXIS_KEYS, "enabled")
        require_keys(config, rest)
        self.check(config)


def _check_fake_quant(config: Narrowed) -> None:
    tensor, what = config["tensor"], f"{ERROR} Feature=FakeQuant, API=process_tensor:"
    if "quant_format" not in config:
        raise ValueError(
            f"{what} quant_format missing for Tensor: {tensor} in the config yaml for FakeQuant "
            "feature which is a required field"
        )
    if config["quant_format"] not in supported_formats():
        raise ValueError(
            f"{what} quant_format: {config['quant_format']} for Tensor: {tensor} in the config "
            f"yaml for FakeQuant feature is not supported; one of {', '.join(supported_formats())}"
        )


def _check_per_tensor_scaling(config: Narrowed) -> None:
    use = USES[config["tensor"]]
    if use.is_result and config["gemm"] in use.gemms:
        raise AssertionError(
            f"{ERROR} Feature=PerTensorScaling, API=process_tensor: Per-tensor current scaling can "
            "be used only within `DelayedScaling` recipe autocast, which quantizes operands and "
            f"not {config['tensor']}."
        )


def _check_log(check_statistics: Callable[[Any], None]) -> Callable[[Narrowed], None]:
    def check(config: Narrowed) -> None:
        Schedule.of(config)
        check_statistics(_statistics.listed(config))

    return check


def _check_dump(config: Narrowed) -> None:
    Schedule.of(config)
    require_flag(config, "high_precision_tensor")
    require_flag(config, "quantized_tensor")


_BOTH = ("gemm", "tensor")
_LOG_KEYS = ("stats", *SCHEDULE_KEYS)
_DISABLE_GEMM = Rules(("gemm",), strict=True)
_DISABLE_LAYER = Rules((), ("enabled",), strict=True)

RULES: dict[str, Rules] = {
    "FakeQuant": Rules(_BOTH, ("quant_format",), _check_fake_quant, strict=True),
    "PerTensorScaling": Rules(_BOTH, check=_check_per_tensor_scaling, strict=True),
    "DisableQuantizationGEMM": _DISABLE_GEMM,
    "DisableFP8GEMM": _DISABLE_GEMM,
    "DisableQuantizationLayer": _DISABLE_LAYER,
    "DisableFP8Layer": _DISABLE_LAYER,
    "LogTensorStats": Rules(
        ("tensor",), _LOG_KEYS, _check_log(_statistics.check_tensor_statistics)
    ),
    "LogFp8TensorStats": Rules(
        ("tensor",), _LOG_KEYS, _check_log(_statistics.check_fp8_statistics)
    ),
    "LogNvfp4TensorStats": Rules(
        ("tensor",), _LOG_KEYS, _check_log(_statistics.check_nvfp4_statistics)
    ),
    "DumpTensors": Rules(
        ("tensor",),
        ("high_precision_tensor", "quantized_tensor", *SCHEDULE_KEYS),
        _check_dump,
    ),
    "TestDummyFeature": Rules(
        ("tensor",),
        ("inspect_only_once",),
        lambda config: require_flag(config, "inspect_only_once"),
    ),
}
