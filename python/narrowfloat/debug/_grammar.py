# SPDX-License-Identifier: Apache-2.0
"""Names of gemms and tensors, and the selection of a block's parameters for a gemm or tensor."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

ERROR = "[NVTORCH INSPECT ERROR]"

GEMMS = ("fprop", "wgrad", "dgrad")


class Use(NamedTuple):
    """The gemms that use a tensor; a result belongs to one gemm."""

    rowwise: str
    columnwise: str | None = None
    is_result: bool = False

    @property
    def gemms(self) -> tuple[str, ...]:
        return tuple(gemm for gemm in (self.rowwise, self.columnwise) if gemm is not None)


USES: dict[str, Use] = {
    "activation": Use("fprop", "wgrad"),
    "weight": Use("fprop", "dgrad"),
    "gradient": Use("dgrad", "wgrad"),
    "output": Use("fprop", is_result=True),
    "wgrad": Use("wgrad", is_result=True),
    "dgrad": Use("dgrad", is_result=True),
}
TENSORS = tuple(USES)
RESULTS = tuple(tensor for tensor, use in USES.items() if use.is_result)
OPERANDS: dict[str, tuple[str, ...]] = {
    gemm: tuple(t for t, use in USES.items() if gemm in use.gemms and not use.is_result)
    for gemm in GEMMS
}

# The keys of a block that select gemms and tensors, each also with the suffix "_struct".
AXES = ("gemms", "tensors")
AXIS_KEYS = tuple(axis + suffix for axis in AXES for suffix in ("", "_struct"))

# The arguments of each api that select features and the parameters of their blocks.
SELECTORS: dict[str, tuple[str, ...]] = {
    "fp8_gemm_enabled": ("gemm",),
    "modify_tensor_enabled": ("tensor_name", "gemm"),
    "modify_tensor": ("tensor_name", "gemm"),
    "inspect_tensor": ("tensor_name",),
    "inspect_tensor_enabled": ("tensor_name",),
    "inspect_tensor_postquantize": ("tensor_name",),
    "inspect_tensor_postquantize_enabled": ("tensor_name",),
}
DEFAULT_SELECTORS = ("tensor_name", "gemm")


def require_gemm(gemm: object) -> None:
    """Raises AssertionError unless `gemm` is in GEMMS."""
    if gemm not in GEMMS:
        names = ", ".join(f"'{name}'" for name in GEMMS)
        raise AssertionError(f"{ERROR} Invalid gemm: {gemm}. It must be one of the [{names}].")


def require_tensor(tensor: object) -> None:
    """Raises ValueError unless `tensor` is in TENSORS."""
    if tensor not in TENSORS:
        names = ", ".join(f"'{name}'" for name in TENSORS)
        raise ValueError(f"{ERROR} Invalid tensor: {tensor}. It must be one of the [{names}].")


def names_of(listed: object) -> list[Any]:
    """Returns the names in a `gemms` or `tensors` list; a string may hold one or several.

    Errors: ValueError for anything else.
    """
    if isinstance(listed, str):
        return re.findall(r"[^,\s]+", listed)
    if not isinstance(listed, list | tuple):
        raise ValueError(f"{ERROR} gemms and tensors must be lists of names, got {listed!r}.")
    return list(listed)


def entries_of(axis: str, listed: object) -> list[dict[str, Any]]:
    """Returns the entries of a `<axis>_struct` list; None is an empty list.

    Errors: ValueError for a value of another form or an entry without its `gemm` or `tensor`.
    """
    key = axis[:-1]
    if listed is None:
        return []
    if not isinstance(listed, list | tuple):
        raise ValueError(f"{ERROR} {axis}_struct must be a list of mappings, got {listed!r}.")
    for entry in listed:
        if not isinstance(entry, Mapping) or key not in entry:
            raise ValueError(
                f"{ERROR} An entry of {axis}_struct must name its {key}, got {entry!r}."
            )
    return list(listed)


def narrow(
    block: Mapping[str, Any], gemm: str | None = None, tensor: str | None = None
) -> dict[str, Any] | None:
    """Returns the parameters of a block for one gemm, one tensor, or a tensor of a gemm.

    Returns None if they are not listed. `gemm` and `tensor` replace the lists. The innermost value
    of a parameter applies, and the first of two entries with one name. Entries of `gemms_struct`
    without own tensors use the tensors beside `gemms_struct`.
    Errors: ValueError without the lists; AssertionError for an unknown gemm, or for
    `enabled` within `gemms_struct`.
    """
    copied = copy.deepcopy(dict(block))
    narrowed: dict[str, Any] | None = copied
    if gemm is not None:
        narrowed = _narrow_to_gemm(copied, gemm, tensor)
    elif tensor is not None:
        narrowed = _narrow_to_tensor(copied, tensor)
    if narrowed is not None:
        narrowed.pop("enabled", None)
    return narrowed


def _narrow_to_gemm(block: dict[str, Any], gemm: str, tensor: str | None) -> dict[str, Any] | None:
    if "gemms_struct" in block:
        entries = entries_of("gemms", block.pop("gemms_struct"))
        for entry in entries:
            require_gemm(entry["gemm"])
        found = next((entry for entry in entries if entry["gemm"] == gemm), None)
        return None if found is None else _merge_entry(block, found, tensor)
    if "gemms" not in block:
        raise ValueError(
            f"{ERROR} Provide 'gemms_struct: List[Dict]' or 'gemms: List[str]' in the config yaml"
        )
    gemms = names_of(block.pop("gemms"))
    for listed in gemms:
        require_gemm(listed)
    if gemm not in gemms:
        return None
    narrowed = block if tensor is None else _narrow_to_tensor(block, tensor)
    return None if narrowed is None else {**narrowed, "gemm": gemm}


def _merge_entry(
    block: dict[str, Any], entry: dict[str, Any], tensor: str | None
) -> dict[str, Any] | None:
    """Returns the keys beside `gemms_struct`, overridden by one of its entries."""
    if tensor is not None:
        outer: dict[str, Any] = {
            key: block.pop(key) for key in ("tensors", "tensors_struct") if key in block
        }
        has_own = "tensors" in entry or "tensors_struct" in entry
        entry = entry if has_own else {**outer, **entry}
        narrowed = _narrow_to_tensor(dict(entry), tensor)
        if narrowed is None:
            return None
        entry = narrowed
    if "enabled" in entry:
        raise AssertionError(f"{ERROR} Enabled field should not be part of gemms_struct")
    return {**block, **entry}


def _narrow_to_tensor(block: dict[str, Any], tensor: str) -> dict[str, Any] | None:
    if "tensors_struct" in block:
        entries = entries_of("tensors", block.pop("tensors_struct"))
        entry = next((entry for entry in entries if entry["tensor"] == tensor), None)
        return None if entry is None else {**block, **entry}
    if "tensors" not in block:
        raise ValueError(
            "Provide 'tensors_struct: List[Dict]' or 'tensors: List[str]' in the config yaml."
        )
    if tensor not in names_of(block.pop("tensors")):
        return None
    return {**block, "tensor": tensor}
