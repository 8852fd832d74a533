# SPDX-License-Identifier: Apache-2.0
"""All that is wrong in the block of a feature."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from narrowfloat.debug._grammar import (
    AXES,
    AXIS_KEYS,
    ERROR,
    GEMMS,
    TENSORS,
    entries_of,
    names_of,
    narrow,
    require_gemm,
    require_tensor,
)
from narrowfloat.debug._rules import RULES, Rules, require_flag, require_keys
from narrowfloat.debug._statistics import OldSpelling


@dataclass(frozen=True)
class Finding:
    """Something wrong in a block.

    error: what is raised, when the configuration is loaded if it is `fatal`, else when a layer
    that the section selects makes the call. Blocks whose error is not fatal are in use in
    configurations that never come to that call.
    """

    error: Exception
    fatal: bool = True


def findings(feature: str, block: object) -> Iterator[Finding]:
    """All that is wrong in the block of one of the features in RULES, most basic things first."""
    if not isinstance(block, Mapping):
        yield Finding(ValueError(f"{ERROR} The block of {feature} is a mapping, got {block!r}."))
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
        yield from _attempt(lambda: require_keys(block, rules.keys))
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
    except ValueError as error:  # a list is missing; it is asked for when a layer calls
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
    """Errors: as narrow() has them, for every name wherever it stands in the block."""
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
    """Keys that no narrowing of this block meets, because nothing is listed or all is elsewhere."""
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
