# SPDX-License-Identifier: Apache-2.0
"""What stands in a feature's block and is passed over in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from narrowfloat.debug._grammar import AXES, GEMMS, TENSORS, USES, entries_of, narrow
from narrowfloat.debug._rules import RULES


def unread(feature: str, block: Mapping[str, Any]) -> Iterator[str]:
    """Messages about an enabled block in which nothing else is wrong."""
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
    """Gemms and tensors that are listed, but never with one another as a layer has them."""
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
