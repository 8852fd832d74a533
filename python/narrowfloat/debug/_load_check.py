# SPDX-License-Identifier: Apache-2.0
"""Checks a configuration when the host loads it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from narrowfloat.debug._block_rules import RULES, findings
from narrowfloat.debug._host import PACKAGE, debug_api


def blocks_of(config: object, namespace: str) -> Iterator[tuple[str, str, Any]]:
    """Yields (section, feature, block) of all enabled sections; the host reports malformed ones."""
    if not isinstance(config, Mapping):
        return
    for section, content in config.items():
        if not isinstance(content, Mapping) or not content.get("enabled"):
            continue
        features = content.get(namespace)
        if isinstance(features, Mapping):
            for feature, block in features.items():
                yield section, feature, block


def _read(source: object) -> object:
    """Returns the argument of initialize(): a configuration, or the one in a YAML file."""
    if not isinstance(source, str | Path):
        return source
    import yaml

    try:
        with open(source) as file:
            return yaml.safe_load(file)
    except FileNotFoundError:  # the host reports it later
        return None


class CheckedFeatures(dict):
    """The features of a namespace by name; the first lookup checks the configuration.

    The host has no hook for checks, but looks up names here while it loads a configuration.
    Errors of the lookup: the first fatal finding. Others are warnings.
    """

    def __init__(self, features: Mapping[str, Any], namespace: str) -> None:
        super().__init__(features)
        self._namespace = namespace
        self._checked = False

    def __contains__(self, name: object) -> bool:
        manager = debug_api.DEBUG_MANAGER
        if manager is not None and not self._checked:
            self._checked = True
            self._check(_read(manager.config_file))
        return super().__contains__(name)

    def _is_ours(self, feature: str) -> bool:
        return type(self.get(feature)).__module__.startswith(PACKAGE) and feature in RULES

    def _check(self, config: object) -> None:
        for section, feature, block in blocks_of(config, self._namespace):
            if not self._is_ours(feature):
                continue
            place = f"in section {section}, feature {feature}"
            for found in findings(feature, block):
                if found.fatal:
                    found.error.add_note(place)
                    raise found.error
                warnings.warn(f"{found.error} ({place})", stacklevel=2)
