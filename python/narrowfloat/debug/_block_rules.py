# SPDX-License-Identifier: Apache-2.0
"""Rules for the blocks of features: legal keys and values, and the keys that no call reads."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from narrowfloat.debug import _statistic_names
from narrowfloat.debug._formats import supported_formats
from narrowfloat.debug._grammar import (
    AXES,
    AXIS_KEYS,
    ERROR,
    GEMMS,
    TENSORS,
    USES,
    entries_of,
    names_of,
    narrow,
    require_gemm,
    require_tensor,
)
from narrowfloat.debug._schedule import SCHEDULE_KEYS, Schedule
from narrowfloat.debug._statistic_names import OldSpelling

Narrowed = Mapping[str, Any]


def require_keys(config: Narrowed, allowed: tuple[str, ...]) -> None:
    """Raises ValueError for the first key that is not allowed."""
    for key in config:
        if key not in allowed:
            raise ValueError(f'{ERROR} Unexpected key in config: "{key}".')


def require_flag(config: Narrowed, key: str) -> None:
    """Raises ValueError unless the value is true or false, or 1 or 0."""
    value = config.get(key, False)
    if not isinstance(value, int) or value not in (0, 1):
        raise ValueError(f"{ERROR} {key} must be True or False, got {config[key]!r}.")


@dataclass(frozen=True)
class Rules:
    """The rules of one feature.

    axes: "gemm", "tensor" or both: the lists that its block needs; without axes the host does not
    narrow the block. keys: its parameters. check:
    raises the feature's errors for a narrowed block. strict: keys of an axis that the feature does
    not use are errors instead of being ignored.
    """

    axes: tuple[str, ...]
    keys: tuple[str, ...] = ()
    check: Callable[[Narrowed], None] = lambda config: None
    strict: bool = False

    def allowed(self) -> tuple[str, ...]:
        """Returns the keys of a narrowed block."""
        return (*self.axes, *self.keys)

    def check_narrowed(self, config: Narrowed) -> None:
        """Raises the errors of the feature when it is called with this block."""
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
        check_statistics(_statistic_names.listed(config))

    return check


def _check_dump(config: Narrowed) -> None:
    Schedule.of(config)
    require_flag(config, "high_precision_tensor")
    require_flag(config, "quantized_tensor")


_BOTH = ("gemm", "tensor")
_LOG_KEYS = ("stats", *SCHEDULE_KEYS)
_DISABLE_GEMM = Rules(("gemm",), strict=True)
_DISABLE_LAYER = Rules((), ("enabled", "gemm"), strict=True)  # TransformerEngine allows `gemm`

RULES: dict[str, Rules] = {
    "FakeQuant": Rules(_BOTH, ("quant_format",), _check_fake_quant, strict=True),
    "PerTensorScaling": Rules(_BOTH, check=_check_per_tensor_scaling, strict=True),
    "DisableQuantizationGEMM": _DISABLE_GEMM,
    "DisableFP8GEMM": _DISABLE_GEMM,
    "DisableQuantizationLayer": _DISABLE_LAYER,
    "DisableFP8Layer": _DISABLE_LAYER,
    "LogTensorStats": Rules(
        ("tensor",), _LOG_KEYS, _check_log(_statistic_names.check_tensor_statistics)
    ),
    "LogFp8TensorStats": Rules(
        ("tensor",), _LOG_KEYS, _check_log(_statistic_names.check_fp8_statistics)
    ),
    "LogNvfp4TensorStats": Rules(
        ("tensor",), _LOG_KEYS, _check_log(_statistic_names.check_nvfp4_statistics)
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


@dataclass(frozen=True)
class Finding:
    """A problem in a block.

    error: the exception that is raised. If `fatal`, it is raised when the configuration is loaded,
    else when a selected layer makes the call. Existing configurations contain blocks with errors
    that are not fatal, and never make that call.
    """

    error: Exception
    fatal: bool = True


def findings(feature: str, block: object) -> Iterator[Finding]:
    """Yields the problems in the block of a feature in RULES, the most basic ones first."""
    if not isinstance(block, Mapping):
        yield Finding(
            ValueError(f"{ERROR} The block of {feature} must be a mapping, got {block!r}.")
        )
        return
    if not block:
        return
    if "enabled" not in block:
        message = f"Missing required config field `enabled` under {feature} context."
        yield Finding(AssertionError(message))
        return
    try:
        require_flag(block, "enabled")
    except ValueError as error:
        yield Finding(error)
        return
    if block["enabled"]:
        yield from _findings_of_enabled(feature, block)


def _findings_of_enabled(feature: str, block: Mapping[str, Any]) -> Iterator[Finding]:
    rules = RULES[feature]
    if not rules.axes:
        yield from _attempt(lambda: rules.check_narrowed(block))
        return
    names = list(_attempt(lambda: _check_names(block)))
    yield from names
    if names:
        return
    yield from _unread_keys(rules, block)
    seen: set[str] = set()
    for gemm in GEMMS if "gemm" in rules.axes else (None,):
        for tensor in TENSORS if "tensor" in rules.axes else (None,):
            for found in _findings_of_pair(rules, block, gemm, tensor):
                if str(found.error) not in seen:
                    seen.add(str(found.error))
                    yield found


def _attempt(check: Callable[[], None]) -> Iterator[Finding]:
    try:
        check()
    except (ValueError, AssertionError) as error:
        yield Finding(error)


def _findings_of_pair(
    rules: Rules, block: Mapping[str, Any], gemm: str | None, tensor: str | None
) -> Iterator[Finding]:
    try:
        config = narrow(block, gemm, tensor)
    except ValueError as error:  # a list is missing; needed only when a layer makes a call
        yield Finding(error, fatal=False)
        return
    except AssertionError as error:
        yield Finding(error)
        return
    if config is None:
        return
    try:
        rules.check_narrowed(config)
    except OldSpelling as error:
        yield Finding(error, fatal=False)
    except (ValueError, AssertionError) as error:
        yield Finding(error)


def _check_names(block: Mapping[str, Any]) -> None:
    """Raises the errors of narrow() for every name in the block."""
    for gemm in names_of(block.get("gemms", [])):
        require_gemm(gemm)
    for tensor in names_of(block.get("tensors", [])):
        require_tensor(tensor)
    for entry in entries_of("tensors", block.get("tensors_struct")):
        require_tensor(entry["tensor"])
    for entry in entries_of("gemms", block.get("gemms_struct")):
        require_gemm(entry["gemm"])
        _check_names({key: entry[key] for key in entry if key not in ("gemm", "gemms_struct")})


def _unread_keys(rules: Rules, block: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields findings for keys that no call reads, because their gemm or tensor is not listed."""
    axes = rules.axes if rules.strict else ("gemm", "tensor")
    lists = tuple(key for key in AXIS_KEYS if key.startswith(axes))
    allowed = (*rules.keys, *lists, "enabled")
    yield from _attempt(lambda: require_keys(block, allowed))
    for axis in AXES:
        for entry in entries_of(axis, block.get(f"{axis}_struct")):
            if axis == "tensors" and not entry.get("enabled", True):
                message = f"{ERROR} An entry of tensors_struct cannot be disabled: {entry!r}."
                yield Finding(ValueError(message))
            yield from _attempt(functools.partial(require_keys, entry, (*allowed, axis[:-1])))


def unread(feature: str, block: Mapping[str, Any]) -> Iterator[str]:
    """Yields messages about an enabled block that has no other problem."""
    if not RULES[feature].axes and "gemm" in block:
        yield "gemm is not read, the feature is for all gemms"
    yield from _in_lists(block, "")
    if RULES[feature].axes == ("gemm", "tensor"):
        yield from _without_use(block)


def _in_lists(block: Mapping[str, Any], where: str) -> Iterator[str]:
    for axis in AXES:
        struct, key = f"{axis}_struct", axis[:-1]
        if struct not in block:
            continue
        if axis in block:
            yield f"{where}{axis} is not read beside {struct}"
        entries = entries_of(axis, block[struct])
        for name, count in Counter(entry[key] for entry in entries).items():
            if count > 1:
                yield f"{where}{struct}: of {count} entries for {name} the first one counts"
        for entry in entries:
            if axis == "gemms":
                yield from _in_lists(entry, f"{where}{struct}, {entry[key]}: ")


def _without_use(block: Mapping[str, Any]) -> Iterator[str]:
    """Yields messages about listed gemms and tensors that never form a pair of a layer."""
    pairs = [(g, t) for g in GEMMS for t in TENSORS if narrow(block, g, t) is not None]
    used = [(gemm, tensor) for gemm, tensor in pairs if gemm in USES[tensor].gemms]
    if not pairs:
        yield "lists no tensor for any gemm"
    for tensor in dict.fromkeys(tensor for _, tensor in pairs):
        if all(tensor != other for _, other in used):
            gemms = " and ".join(dict.fromkeys(gemm for gemm, _ in pairs))
            yield f"{tensor} is listed for {gemms}, but is of {' and '.join(USES[tensor].gemms)}"
    for gemm in dict.fromkeys(gemm for gemm, _ in pairs):
        if all(gemm != other for other, _ in used):
            yield f"none of the tensors that are listed for {gemm} is one of its own"
