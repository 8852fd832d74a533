# SPDX-License-Identifier: Apache-2.0
"""Tests that the docstring of every public class explains every argument of its constructor."""

import enum
import inspect
import re

import narrowfloat.pytorch as nfp
import pytest
from narrowfloat.common import recipe

import narrowfloat as nf

# Only quantize() makes the core's tensors.
WITHOUT_CONSTRUCTOR = {"narrowfloat._core.QuantizedTensor"}

CLASSES = {
    f"{cls.__module__}.{cls.__name__}": cls
    for face in (nf, nfp, recipe)
    for cls in (getattr(face, name) for name in face.__all__)
    if inspect.isclass(cls) and not issubclass(cls, enum.Enum)
}


def arguments_of(cls: type) -> list[str]:
    """Returns the names of the arguments that a constructor lists."""
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(cls).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind not in stars]


def explained_in(cls: type) -> set[str]:
    """Returns the arguments that the docstring of a class or of a base named in it explains."""
    text = re.sub(r",\n *", ", ", inspect.getdoc(cls) or "")
    entries = re.findall(r"(?:^|[.\n] *)((?:\w+, )*\w+): ", text)
    names = {name for entry in entries for name in entry.split(", ")}
    named = [base for base in cls.__mro__[1:] if f"those of {base.__name__}" in text
             or f"and of {base.__name__}" in text]  # fmt: skip
    return names.union(*(explained_in(base) for base in named))


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - WITHOUT_CONSTRUCTOR))
def test_every_argument_is_explained(name: str) -> None:
    explained = explained_in(CLASSES[name])
    assert [arg for arg in arguments_of(CLASSES[name]) if arg not in explained] == []


def test_layers_tensors_quantizers_and_recipes_are_looked_at() -> None:
    names = {name.rpartition(".")[2] for name in CLASSES}
    assert {
        "Linear",
        "GroupedLinear",
        "MXFP8Tensor",
        "NVFP4TensorStorage",
        "GroupedTensor",
    } <= names
    assert {"HybridQuantizer", "IdentityQuantizer", "DelayedScaling", "QParams"} <= names
    assert len(CLASSES) >= 40
