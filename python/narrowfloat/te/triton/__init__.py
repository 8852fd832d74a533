# SPDX-License-Identifier: Apache-2.0
"""Replaces TransformerEngine's wrappers of Triton kernels by PyTorch's operators.

Modules with a file here are replaced by that file, all others by this one: importing their names
works, and calling one raises an error with the name.
"""

from typing import Any, NoReturn


class _Missing:
    """Raises when it is called, or when an attribute such as apply() is called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **named: Any) -> NoReturn:
        raise NotImplementedError(
            f"narrowfloat.te: {self.__name__} is a Triton kernel and needs a GPU"
        )

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")


def __getattr__(name: str) -> object:
    """Returns an object that raises when it is called."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)
