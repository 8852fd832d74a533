# SPDX-License-Identifier: Apache-2.0
"""Stands in for TransformerEngine's wrappers of Triton kernels, by PyTorch's operators.

Modules that have a file here are supplied from it. The names of all others are given by this one,
so that an import works and a call is refused by its name.
"""

from typing import Any, NoReturn


class _Missing:
    """Refuses to be called, and to give the methods of a class, such as apply()."""

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
    """Returns a stand-in that refuses to be called."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)
