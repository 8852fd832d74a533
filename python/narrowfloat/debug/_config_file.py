# SPDX-License-Identifier: Apache-2.0
"""Reads configurations and lists of layers from untrusted files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

# Limits far above any configuration and far below the limits of parsers.
LARGEST_FILE = 100_000
MOST_VALUES = 100_000
DEEPEST = 32


class BadFile(ValueError):
    """An error for a file that is not a configuration; the message has the reason."""


class _Loader(yaml.SafeLoader):
    """Loads YAML and lists keys that appear twice in a mapping, of which the host reads the last.

    Errors: BadFile if nested merges name too many values. They are counted as written, since PyYAML
    before 6.0.4 stores every one of them, and later versions each key once.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.repeated: list[str] = []
        self._merged = 0
        self._sizes: dict[yaml.MappingNode, int] = {}

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        size = 0
        for key, value in node.value:
            if key.tag != "tag:yaml.org,2002:merge":
                size += 1
                continue
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(source, yaml.MappingNode):
                    self.flatten_mapping(source)
                    size += self._sizes[source]
                    self._merged += self._sizes[source]
                if self._merged > MOST_VALUES:
                    raise BadFile(f"merges more than {MOST_VALUES} values")
        self._sizes.setdefault(node, size)  # a second call gets a mapping without merges
        super().flatten_mapping(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if (key_node.tag, key_node.value) in seen:
                    line = key_node.start_mark.line + 1
                    self.repeated.append(f"line {line}: {key_node.value} appears twice")
                seen.add((key_node.tag, key_node.value))
        return super().construct_mapping(node, deep)


def _read_text(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise BadFile(f"{path}: must be a file, got none") from None
    if len(content) > LARGEST_FILE:
        raise BadFile(f"{path}: {what} must have at most {LARGEST_FILE} bytes, got more")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: {what} must be text in UTF-8: {error}") from None


def read_config(path: Path) -> tuple[Mapping[str, Any], list[str]]:
    """Returns the sections of a configuration by name, and messages for keys that appear twice.

    Errors: BadFile unless it is YAML of plain values and a mapping that, with aliases expanded, is
    neither large nor deep; OSError if the disk fails.
    """
    text = _read_text(path, "a configuration")
    try:
        loader = _Loader(text)
        config = loader.get_single_data()
    except yaml.YAMLError as error:
        raise BadFile(f"{path}: is not YAML of plain values: {error}") from None
    except (ValueError, RecursionError) as error:  # such as an invalid date
        raise BadFile(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(config, Mapping):
        found = "nothing" if config is None else type(config).__name__
        raise BadFile(f"{path}: a configuration must be a mapping of sections, got {found}")
    try:
        _count(config, DEEPEST, MOST_VALUES)
    except BadFile as error:
        raise BadFile(f"{path}: {error}") from None
    for name in config:
        if not isinstance(name, str):
            raise BadFile(f"{path}: names of sections must be strings, got {name!r}")
    return config, loader.repeated


def _count(value: object, depth: int, left: int) -> int:
    """Returns the number of values that may still follow this one.

    Errors: BadFile for too many values or too deep nesting.
    """
    if depth == 0:
        raise BadFile(f"is nested more than {DEEPEST} deep")
    left -= 1
    if left < 0:
        raise BadFile(f"has more than {MOST_VALUES} values")
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in value:
            left = _count(item, depth - 1, left)
    return left


def read_layers(path: Path) -> list[str]:
    """Returns the names of layers, one per line; empty lines are ignored.

    Errors: BadFile unless it is text and names each layer once; OSError if the disk fails.
    """
    lines = [line.strip() for line in _read_text(path, "a list of layers").splitlines()]
    names = [line for line in lines if line]
    for name, count in Counter(names).items():
        if count > 1:
            raise BadFile(f"{path}: layer {name} appears twice")
    if not names:
        raise BadFile(f"{path}: must name a layer, got none")
    return names
