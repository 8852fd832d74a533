# SPDX-License-Identifier: Apache-2.0
"""Every quantizer's docstring names every argument of its constructor."""

import inspect
import re

import narrowfloat.pytorch as nfp
import pytest

import narrowfloat as nf

QUANTIZERS = [
    getattr(face, name)
    for face in (nf, nfp)
    for name in dir(face)
    if name.endswith("Quantizer") and inspect.isclass(getattr(face, name)) and name != "Quantizer"
]


@pytest.mark.parametrize(
    "quantizer", QUANTIZERS, ids=[f"{q.__module__}.{q.__name__}" for q in QUANTIZERS]
)
def test_every_argument_is_explained(quantizer: type) -> None:
    arguments = list(inspect.signature(quantizer).parameters)
    entries = re.findall(r"^ *((?:\w+, )*\w+): ", inspect.getdoc(quantizer) or "", re.MULTILINE)
    explained = {name for entry in entries for name in entry.split(", ")}
    assert arguments and [name for name in arguments if name not in explained] == []


def test_both_faces_are_looked_at() -> None:
    names = {quantizer.__name__ for quantizer in QUANTIZERS}
    assert {"MXFP8Quantizer", "NVFP4Quantizer", "HybridQuantizer", "IdentityQuantizer"} <= names
    assert len(QUANTIZERS) >= 12
