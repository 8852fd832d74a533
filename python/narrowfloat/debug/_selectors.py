# SPDX-License-Identifier: Apache-2.0
"""Finds the layers that a section selects, as the host reads the section."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def _is_names(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(name, str) and name for name in value)
    )


def _is_types(value: object) -> bool:
    return value == "all" or _is_names(value)


def _is_numbers(value: object) -> bool:
    if isinstance(value, str):
        return value.lower() == "all"
    return isinstance(value, list) and bool(value) and all(map(_is_number, value))


def _is_number(item: object) -> bool:
    if not isinstance(item, str):
        return isinstance(item, int) and not isinstance(item, bool)
    bounds = re.fullmatch(r"(\d+)-(\d+)", item)
    return item == "all" or (bounds is not None and int(bounds[1]) <= int(bounds[2]))


def _is_pattern(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except re.error:
        return False


# In the order in which the host reads them; after one of the first two it reads no other.
SELECTORS: dict[str, tuple[Callable[[object], bool], str]] = {
    "exact_layer_names": (_is_names, "a list of names"),
    "layer_name_regex_pattern": (_is_pattern, "a regular expression"),
    "layer_types": (_is_types, 'a list of parts of names, or "all"'),
    "layer_numbers": (_is_numbers, 'a list of numbers and "first-last", or "all"'),
}
ALONE = ("exact_layer_names", "layer_name_regex_pattern")


def findings_of_selectors(layers: object) -> Iterator[str]:
    """Yields a message for each problem in the `layers` of a section."""
    if not isinstance(layers, Mapping):
        yield f"layers must be a mapping of {', '.join(SELECTORS)}, got {layers!r}"
        return
    for key in layers:
        if key not in SELECTORS:
            yield f"layers: selectors must be among {', '.join(SELECTORS)}, got {key}"
    given = [key for key in SELECTORS if key in layers]
    if not given:
        yield f"layers: needs one of {', '.join(SELECTORS)}"
    for key in given:
        is_right, form = SELECTORS[key]
        if not is_right(layers[key]):
            yield f"layers: {key} must be {form}, got {layers[key]!r}"
    if given and given[0] in ALONE:
        for key in given[1:]:
            yield f"layers: {key} is not read beside {given[0]}"


def _matches(layers: Mapping[str, Any], layer: str) -> bool:
    """Returns whether the host selects a layer by its name.

    Errors: ValueError or IndexError for names that the host cannot check.
    """
    from nvdlfw_inspect.config_manager import ConfigSpec, is_layer_in_cfg

    spec = ConfigSpec()
    spec.initialize({"enabled": True, "layers": layers})
    return is_layer_in_cfg(layer, spec)


def select(layers: Mapping[str, Any], names: list[str]) -> tuple[list[str], list[str]]:
    """Returns the layers that valid selectors select, and findings: entries without a layer, and
    layers at which the host raises an error.
    """
    selected, refused = [], []
    for name in names:
        try:
            if _matches(layers, name):
                selected.append(name)
        except (ValueError, IndexError):
            refused.append(name)
    return selected, [*_refusals(layers, refused), *_without_layer(layers, names, selected)]


def _refusals(layers: Mapping[str, Any], refused: list[str]) -> Iterator[str]:
    if not refused:
        return
    listed = ", ".join(refused)
    if layers.get("exact_layer_names") is not None:
        yield (
            f"layers: exact_layer_names stops the host at every layer that it does not name: "
            f"{listed}; use layer_name_regex_pattern"
        )
    else:
        yield (
            f"layers: layer_numbers stops the host at layers without exactly one number in "
            f"their name: {listed}"
        )


def _without_layer(
    layers: Mapping[str, Any], names: list[str], selected: list[str]
) -> Iterator[str]:
    if layers.get("exact_layer_names") is not None:
        for name in layers["exact_layer_names"]:
            if name not in names:
                yield f"layers: exact_layer_names: there is no layer {name}"
        return
    if layers.get("layer_name_regex_pattern") is None:
        types = layers.get("layer_types") or ()
        for part in () if types == "all" else types:
            if part != "all" and not any(part in name for name in names):
                yield f"layers: layer_types: no layer has {part} in its name"
    if not selected:
        yield "layers: no layer is selected"
