# SPDX-License-Identifier: Apache-2.0
"""Makes quantizer classes of a program's own constants of its graphs."""

from __future__ import annotations

import inspect

from narrowfloat.pytorch._values import ValueSemantics


def register_value_opaque_quantizer(cls: type[ValueSemantics]) -> None:
    """Makes quantizers of this very class values; a second call does nothing.

    They compare by their base's fields and by those that the class itself annotates.
    Errors: TypeError if a tensor or a process group is annotated.
    """
    if is_value_opaque_class(cls):
        return
    fields = {
        name: str(kind)
        for name, kind in inspect.get_annotations(cls).items()
        if "ClassVar" not in str(kind)
    }
    for name, kind in fields.items():
        if any(word in kind for word in ("Tensor", "ProcessGroup", "dist_group_type")):
            raise TypeError(
                f"{cls.__name__} cannot be a value: its field {name!r} is annotated {kind}; make "
                "it in _rebuild_derived_state() and leave the annotation out"
            )
    cls.register_value_class(*fields)


def is_value_opaque_class(cls: type) -> bool:
    """Returns whether quantizers of this very class are values."""
    return cls in ValueSemantics._value_classes


def is_value_opaque_quantizer(quantizer: object) -> bool:
    """Returns whether this quantizer is a value."""
    return is_value_opaque_class(type(quantizer))
