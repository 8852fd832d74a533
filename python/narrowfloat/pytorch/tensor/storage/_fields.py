# SPDX-License-Identifier: Apache-2.0
"""The table of a family's fields, which defines constructors, pickles and flattening."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch

from narrowfloat.pytorch import _native
from narrowfloat.pytorch._exported_tensors import name_buffers, name_tensor
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage

REQUIRED: Any = inspect.Parameter.empty  # the default of an argument without one


class Buffer(NamedTuple):
    """A field with a tensor: its name, the constructor's argument, and the planner's roles."""

    name: str
    keyword: str
    roles: tuple[str, ...]
    default: Any = REQUIRED


class Setting(NamedTuple):
    """A field without a tensor.

    mismatch: its name in the error message for a copy between tensors with different values.
    convert: makes the stored value from the argument. keyword_only: cannot be positional.
    """

    name: str
    keyword: str
    mismatch: str
    default: Any = REQUIRED
    convert: Callable[[Any], Any] | None = None
    keyword_only: bool = False


def _direction_rank(buffer: Buffer) -> int:
    """Returns 0 for rowwise codes and scales, 1 for columnwise ones, 2 for all others."""
    if len(buffer.roles) > 1:
        return 2
    return next((i for i, d in enumerate(("row", "col")) if buffer.roles[0].startswith(d)), 2)


def in_flatten_order(buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """Returns the buffers by direction, then those of both directions, then the amaxes."""
    return tuple(sorted(buffers, key=_direction_rank))


def positional_keywords(buffers: Sequence[Buffer], settings: Sequence[Setting]) -> tuple[str, ...]:
    """Returns TransformerEngine's order of arguments: buffers, element type, quantizer, modes."""
    first, *modes = settings
    return (
        *(buffer.keyword for buffer in in_flatten_order(buffers)),
        first.keyword,
        "quantizer",
        *(mode.keyword for mode in modes if not mode.keyword_only),
    )


def payload_keywords(
    sections: Sequence[str], buffers: Sequence[Buffer], settings: Sequence[Setting]
) -> tuple[str, ...]:
    """Returns the arguments in a pickle, in order.

    sections: "buffers", "element" (the first setting) and "modes" (the others) are expanded; any
    other entry is an argument.
    """
    expanded = {
        "buffers": [buffer.keyword for buffer in in_flatten_order(buffers)],
        "element": [setting.keyword for setting in settings[:1]],
        "modes": [setting.keyword for setting in settings[1:]],
    }
    return tuple(name for section in sections for name in expanded.get(section, [section]))


def take_positional(
    cls: type, keywords: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Moves positional arguments to `kwargs` by name; returns the remaining ones.

    Errors: TypeError for an argument given twice.
    """
    for keyword, value in zip(keywords, args, strict=False):
        if keyword in kwargs:
            raise TypeError(f"{cls.__name__} got multiple values for argument {keyword!r}")
        kwargs[keyword] = value
    return args[len(keywords) :]


def signature_of(
    buffers: Sequence[Buffer], settings: Sequence[Setting], positional: Sequence[str]
) -> inspect.Signature:
    """Returns the constructor's signature, for help() and editors."""
    kinds = inspect.Parameter
    fields: tuple[Any, ...] = (*buffers, *settings)
    defaults = {field.keyword: field.default for field in fields}
    defaults |= {"quantizer": None, "fake_dtype": None}
    named = [kinds(k, kinds.POSITIONAL_OR_KEYWORD, default=defaults.pop(k)) for k in positional]
    rest = [kinds(k, kinds.KEYWORD_ONLY, default=value) for k, value in defaults.items()]
    outer = [kinds("args", kinds.VAR_POSITIONAL)]
    return inspect.Signature([*named, *outer, *rest, kinds("kwargs", kinds.VAR_KEYWORD)])


class TableStorage(QuantizedTensorStorage):
    """A storage, or a tensor over one, with its fields defined by a table."""

    BUFFERS: ClassVar[tuple[Buffer, ...]]  # in the order in which they are saved
    SETTINGS: ClassVar[tuple[Setting, ...]] = ()
    POSITIONAL: ClassVar[bool] = False  # whether fields of bare storages can be positional

    # The table defines the following attributes.
    FAMILY: ClassVar[type[TableStorage]]  # the class that has the table
    ROWWISE: ClassVar[str]  # names of the fields that hold codes
    COLUMNWISE: ClassVar[str]
    _INNER_TENSORS: ClassVar[tuple[tuple[str, str], ...]]  # in flattening order
    _role_names: ClassVar[tuple[str | None, ...]]
    _setting_names: ClassVar[dict[str, str]]  # of fields, by the constructor's arguments
    _arguments: ClassVar[tuple[tuple[str, str, Any], ...]]  # field, argument, default
    _required: ClassVar[tuple[str, ...]]
    _conversions: ClassVar[tuple[tuple[str, Callable[[Any], Any]], ...]]
    _positional: ClassVar[tuple[str, ...]]
    _is_tensor: ClassVar[bool] = False
    __signature__: ClassVar[inspect.Signature]
    _shares_scale: ClassVar[bool]  # whether both directions have one scale buffer

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._is_tensor = issubclass(cls, torch.Tensor)
        if "BUFFERS" in cls.__dict__ or "SETTINGS" in cls.__dict__:
            cls._read_table()
        if cls._is_tensor and hasattr(cls, "FAMILY"):  # shape and dtype come first, as in a wrapper
            cls._positional = ()
            cls.__signature__ = signature_of(cls.BUFFERS, cls.SETTINGS, cls._positional)

    @classmethod
    def _read_table(cls) -> None:
        buffers, settings = cls.BUFFERS, cls.SETTINGS
        names = {role: buffer.name for buffer in buffers for role in buffer.roles}
        cls.FAMILY = cls
        cls.ROWWISE, cls.COLUMNWISE = names["rowwise_data"], names["columnwise_data"]
        cls._role_names = tuple(names.get(role) for role in _native.ROLES)
        scales = [names.get(f"{direction}_scale_inv") for direction in ("rowwise", "columnwise")]
        cls._shares_scale = scales[0] is not None and scales[0] == scales[1]
        cls._INNER_TENSORS = tuple((b.name, b.keyword) for b in in_flatten_order(buffers))
        cls._setting_names = {setting.keyword: setting.name for setting in settings}
        fields: tuple[Any, ...] = (*buffers, *settings)
        cls._arguments = tuple((field.name, field.keyword, field.default) for field in fields)
        cls._required = tuple(k for _, k, default in cls._arguments if default is REQUIRED)
        cls._conversions = tuple((s.name, s.convert) for s in settings if s.convert is not None)
        cls._positional = positional_keywords(buffers, settings) if cls.POSITIONAL else ()
        cls.__signature__ = signature_of(buffers, settings, cls._positional)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Makes a bare storage, or a tensor on the device of its codes, over the given buffers.

        The fields are arguments, followed by those of a tensor's wrapper. A tensor takes its fields
        by name, so that shape and dtype can be positional. The quantizer is copied.
        Errors: TypeError for a missing argument, and for one given twice.
        """
        if args:
            args = take_positional(cls, cls._positional, args, kwargs)
        for keyword in cls._required:
            if keyword not in kwargs:
                raise TypeError(f"{cls.__name__} is missing the argument {keyword!r}")
        fields = {name: kwargs.pop(keyword, default) for name, keyword, default in cls._arguments}
        quantizer = kwargs.pop("quantizer", None)
        cls._settle(fields, kwargs)
        if not cls._is_tensor:
            instance = object.__new__(cls)
            nominal = kwargs.get("fake_dtype")
            instance._dtype = torch.float32 if nominal is None else nominal
        else:
            if kwargs.get("device") is None:
                codes = fields[cls.ROWWISE]
                codes = fields[cls.COLUMNWISE] if codes is None else codes
                kwargs["device"] = None if codes is None else codes.device
            # The next base class after the storages makes the wrapper.
            instance = super().__new__(cls, *args, **kwargs)
        instance.__dict__.update(fields)
        instance._quantizer = None if quantizer is None else quantizer.copy()
        name_tensor(instance)
        return instance

    @classmethod
    def _settle(cls, fields: dict[str, Any], outer: dict[str, Any]) -> None:
        """Completes the fields and the wrapper's arguments before they are stored."""
        for name, convert in cls._conversions:
            fields[name] = convert(fields[name])

    def get_metadata(self) -> dict[str, Any]:
        """Returns the constructor's arguments, including the buffers, not copies."""
        name_buffers(self)
        fields = self.__dict__
        metadata = {buffer.keyword: fields[buffer.name] for buffer in self.BUFFERS}
        for setting in self.SETTINGS:
            metadata[setting.keyword] = fields[setting.name]
        metadata["quantizer"] = self._quantizer
        metadata["fake_dtype"] = self._dtype
        return metadata
