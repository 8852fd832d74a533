# SPDX-License-Identifier: Apache-2.0
"""Registers a program's own quantizer classes as constants of graphs."""

from __future__ import annotations

import inspect

from narrowfloat.pytorch._values import ValueSemantics


def register_value_opaque_quantizer(cls: type[ValueSemantics]) -> None:
    """Gives quantizers of exactly this class value semantics; a second call does nothing.

    They compare by their base's fields and by the annotated fields of the class itself.
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
    """Returns whether quantizers of exactly this class have value semantics."""
    return cls in ValueSemantics._value_classes


def is_value_opaque_quantizer(quantizer: object) -> bool:
    """Returns whether this quantizer has value semantics."""
    return is_value_opaque_class(type(quantizer))
