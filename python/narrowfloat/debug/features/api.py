# SPDX-License-Identifier: Apache-2.0
"""The namespace API: routes calls of layers to features; defines results without features."""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from narrowfloat.debug._grammar import DEFAULT_SELECTORS, ERROR, SELECTORS, narrow
from narrowfloat.debug._host import (
    BaseConfigAPIMapper,
    BaseNamespaceAPI,
    Registry,
    log,
    namespace_class,
    note_end_of_session,
)
from narrowfloat.debug._load_check import CheckedFeatures
from narrowfloat.debug.pytorch import layer  # noqa: F401 (layers find it as soon as features load)
from narrowfloat.debug.pytorch.debug_state import TEDebugState
from narrowfloat.pytorch._types import Group, TensorLike
from narrowfloat.pytorch.quantized_tensor import Quantizer

# The result of an `*_enabled` call: whether, and the next iteration in which it may change.
Enabled = tuple[bool, int | None]

# Arguments that a layer passes to inspect_tensor and that a feature may leave out.
OPTIONAL_ARGUMENTS = (
    "quantizer",
    "rowwise_quantized_tensor",
    "columnwise_quantized_tensor",
    "tp_size",
)

_SHARED_APIS = (
    "fp8_gemm_enabled",
    "inspect_tensor",
    "inspect_tensor_enabled",
    "inspect_tensor_postquantize",
    "inspect_tensor_postquantize_enabled",
)


class TEConfigAPIMapper(BaseConfigAPIMapper):
    """Selects the parameters of a feature's block for a gemm and a tensor.

    The block lists them as

    - `gemms: [..]` with `tensors: [..]`: every pair, with parameters beside the lists;
    - `gemms: [..]` with `tensors_struct: [{tensor: .., key: value}]`: parameters for each tensor;
    - `gemms_struct: [{gemm: .., tensors: [..], key: value}]`: parameters for each gemm;
    - `gemms_struct: [{gemm: .., tensors_struct: [..]}]`: for each pair.

    The innermost value of a parameter applies. gemms: fprop, dgrad, wgrad. tensors: activation,
    weight, gradient, output, dgrad, wgrad.
    """

    def parse_config_and_api(
        self, config: Mapping[str, Any], **kwargs: Any
    ) -> tuple[bool, dict[str, Any] | None]:
        """Returns whether the block applies to the call, and its parameters for the call.

        gemm_parsing, tensor_parsing: whether to narrow by the call's `gemm` and `tensor_name`.
        Errors: as narrowfloat.debug._grammar.narrow; ValueErrors are logged too.
        """
        gemm = kwargs["gemm"] if kwargs.get("gemm_parsing") else None
        tensor = kwargs["tensor_name"] if kwargs.get("tensor_parsing") else None
        if gemm is None and tensor is None:
            return False, None
        try:
            narrowed = narrow(config, gemm, tensor)
        except ValueError as error:
            log(str(error), level=logging.ERROR)
            raise
        return narrowed is not None, narrowed


class TEDefaultFeatures:
    """The results of calls for a layer, gemm or tensor without an enabled feature."""

    def fp8_gemm_enabled(
        self, config: dict[str, Any], layer_name: str, gemm: str, iteration: int
    ) -> bool | Enabled:
        """Returns whether a gemm of a quantized layer is quantized, if no feature modifies
        operands.
        """
        return True, None

    def modify_tensor_enabled(
        self, config: dict[str, Any], layer_name: str, gemm: str, tensor_name: str, iteration: int
    ) -> bool | Enabled:
        """Returns whether modify_tensor replaces the tensor's quantization for this gemm."""
        return False, None

    def modify_tensor(
        self,
        config: dict[str, Any],
        layer_name: str,
        gemm: str,
        tensor_name: str,
        tensor: torch.Tensor,
        default_quantizer: Quantizer | None,
        iteration: int,
        out: TensorLike | None = None,
        dtype: torch.dtype | None = None,
    ) -> TensorLike | None:
        """Returns the modified operand or result of a gemm. Both operands must be of one kind.

        default_quantizer: the quantizer that is replaced, or None. out: is filled; returns None.
        Errors: NotImplementedError.
        """
        raise NotImplementedError(
            "modify_tensor_enabled() returned True, modify_tensor() was invoked, but it is not "
            "handled by any API."
        )

    def inspect_tensor(
        self,
        config: dict[str, Any],
        layer_name: str,
        tensor_name: str,
        tensor: torch.Tensor | None,
        rowwise_quantized_tensor: TensorLike | None = None,
        columnwise_quantized_tensor: TensorLike | None = None,
        quantizer: Quantizer | None = None,
        iteration: int | None = None,
        tp_group: Group = None,
        tp_size: int = 1,
    ) -> None:
        """Inspects a tensor before quantizing, and in the forms that its gemms read."""

    def inspect_tensor_postquantize(
        self,
        config: dict[str, Any],
        layer_name: str,
        tensor_name: str,
        tensor: TensorLike,
        rowwise: bool = True,
        iteration: int | None = None,
        tp_group: Group = None,
        tp_size: int = 1,
        gemm: str | None = None,
    ) -> None:
        """Inspects one form of a quantized or modified tensor. Deprecated."""

    def inspect_tensor_enabled(
        self, config: dict[str, Any], layer_name: str, tensor_name: str, iteration: int
    ) -> bool | Enabled:
        """Returns whether inspect_tensor is called."""
        return False, None

    def inspect_tensor_postquantize_enabled(
        self, config: dict[str, Any], layer_name: str, gemm: str, tensor_name: str, iteration: int
    ) -> bool | Enabled:
        """Returns whether inspect_tensor_postquantize is called. Deprecated."""
        return False, None


def merge_enabled(answers: list[bool | Enabled], iteration: int) -> Enabled:
    """Returns the merged result: whether any feature is on, and the earliest next iteration.

    A bare bool has no next iteration, so the next one is used.
    """
    pairs = [(a, iteration + 1) if isinstance(a, bool) else tuple(a) for a in answers]
    following = [step for _, step in pairs if step is not None]
    return any(on for on, _ in pairs), min(following, default=None)


@functools.cache
def _parameters(function: Callable) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


@functools.cache
def _tensor_classes() -> tuple[type, ...]:
    """Returns the classes that modify_tensor may return."""
    from narrowfloat.pytorch import tensor
    from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage

    classes = [getattr(tensor, name) for name in tensor.__all__]
    known = [c for c in classes if isinstance(c, type) and issubclass(c, QuantizedTensorStorage)]
    return (torch.Tensor, torch.nn.Parameter, *known)


@namespace_class
class TransformerEngineAPI(BaseNamespaceAPI):
    """Routes the calls of layers to the features that the configuration enables for them.

    A call names its layer and its gemm or tensor or both. The features with a block that lists
    these return the result, else TEDefaultFeatures does.
    """

    def __init__(self) -> None:
        super().__init__()
        self._default_api_impl = TEDefaultFeatures()
        # The host caches routes by these arguments, so they include all that select a route.
        self._cacheable_api_kwargs_map = {api: list(names) for api, names in SELECTORS.items()}

    def set_features(self, features: Mapping[str, Any]) -> None:
        """Stores the registered features, wrapped so that loading a configuration checks it."""
        super().set_features(features)
        Registry.data[self.name].features = CheckedFeatures(features, self.name)

    def is_multiple_feature_invocation_allowed(self, api_name: str) -> bool:
        """Returns whether several features may handle one call."""
        return api_name in _SHARED_APIS

    def input_assertions_hook(self, api_name: str, **kwargs: Any) -> None:
        """Raises AssertionError unless the call has the arguments that it is routed by."""
        for name in SELECTORS.get(api_name, DEFAULT_SELECTORS):
            if name not in kwargs:
                raise AssertionError(
                    f"{ERROR} Cannot route API, too ambiguous. Provide {name} in {api_name}."
                )

    def routing_condition(
        self,
        api_name: str,
        config: dict[str, Any],
        layer_name: str,
        feature_obj: TEConfigAPIMapper,
        **kwargs: Any,
    ) -> tuple[bool, dict[str, Any] | None]:
        """Returns whether a feature's block applies to a call, and its parameters for the call."""
        selectors = SELECTORS.get(api_name, DEFAULT_SELECTORS)
        return feature_obj.parse_config_and_api(
            config,
            gemm_parsing="gemm" in selectors,
            tensor_parsing="tensor_name" in selectors,
            **kwargs,
        )

    def output_assertions_hook(self, api_name: str, ret: object, **kwargs: Any) -> None:
        """Raises AssertionError for a result that the api does not allow.

        `*_enabled`: a bool or a pair. `inspect_*`: None. modify_tensor: a tensor class itself, no
        subclass; a plain tensor of the `dtype` that was passed; None exactly if `out` was.
        """
        if api_name.endswith("_enabled"):
            if not isinstance(ret, bool | tuple):
                raise AssertionError(
                    f"{ERROR} {api_name} must return a bool or a pair, got {ret!r}."
                )
        elif api_name.startswith("inspect_tensor"):
            if ret is not None:
                raise AssertionError(f"{ERROR} {api_name} must return None, got {ret!r}.")
        elif api_name == "modify_tensor":
            _check_modified(ret, kwargs.get("out"), kwargs.get("dtype"))

    def call_feature(
        self, call: Callable, feat_config: dict[str, Any], layer_name: str, **kwargs: Any
    ) -> Any:  # noqa: ANN401  # the answer of any feature
        """Calls a feature with the arguments that its function has."""
        name = call.__name__
        if name == "inspect_tensor_postquantize":
            warnings.warn(
                "inspect_tensor_postquantize is deprecated, use inspect_tensor instead.",
                DeprecationWarning,
                stacklevel=2,
            )
        if name == "inspect_tensor":
            named = _parameters(getattr(call, "__func__", call))
            for key in OPTIONAL_ARGUMENTS:
                if key not in named:
                    kwargs.pop(key, None)
        return call(feat_config, layer_name, **kwargs)

    def handle_multi_feature_output(
        self, api_name: str, multi_feature_outputs: list, features_to_invoke: dict, **kwargs: Any
    ) -> Any:  # noqa: ANN401  # the answer of any feature
        """Returns the merged result of several features.

        Errors: AssertionError if they differ for an api that needs equal results.
        """
        if api_name.endswith("_enabled"):
            return merge_enabled(multi_feature_outputs, kwargs["iteration"])
        return super().handle_multi_feature_output(
            api_name, multi_feature_outputs, features_to_invoke, **kwargs
        )

    def step(self) -> None:
        """Logs the statistics of an iteration. The host calls this at the end of each iteration."""
        from narrowfloat.debug._statistic_buffers import STATS_BUFFERS

        STATS_BUFFERS.log_stats()

    def end_debug(self) -> None:
        """Resets the state of debugging. The host calls this at the end of a session."""
        TEDebugState._reset()
        note_end_of_session()


def _check_modified(ret: object, out: TensorLike | None, dtype: torch.dtype | None) -> None:
    if out is not None:
        if ret is not None:
            raise AssertionError(
                f"{ERROR} modify_tensor must fill `out` and return None, got a tensor."
            )
    elif type(ret) not in _tensor_classes():
        raise AssertionError(
            f"{ERROR} modify_tensor must return a tensor, got {type(ret).__name__}."
        )
    elif type(ret) is torch.Tensor and dtype is not None and ret.dtype != dtype:
        raise AssertionError(f"{ERROR} modify_tensor must return {dtype}, got {ret.dtype}.")
