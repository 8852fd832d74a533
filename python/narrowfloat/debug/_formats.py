# SPDX-License-Identifier: Apache-2.0
"""Names of formats that a tensor can be fake-quantized to."""

from __future__ import annotations

from typing import NamedTuple

from narrowfloat import _core


class Format(NamedTuple):
    """The scheme of one of TransformerEngine's format names, and whether it has blocks."""

    scheme: str
    in_blocks: bool


FORMATS: dict[str, Format] = {
    **{f"FP8{e.upper()}": Format(_core.per_tensor_scheme(e), False) for e in ("e4m3", "e5m2")},
    **{f"MXFP8{e.upper()}": Format(_core.mx_scheme(e, False), True) for e in ("e4m3", "e5m2")},
}


def supported_formats() -> list[str]:
    """Returns TransformerEngine's four names, then the names of all schemes."""
    return [*FORMATS, *_core.schemes()]
