# SPDX-License-Identifier: Apache-2.0
"""Quantizes by a parent quantizer; features of the host inspect or replace the forms it makes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from narrowfloat.debug._grammar import ERROR, USES
from narrowfloat.debug.pytorch._session import ask, log_once
from narrowfloat.debug.pytorch.debug_state import TEDebugState
from narrowfloat.debug.pytorch.debug_tensor import DebugQuantizedTensor
from narrowfloat.pytorch._autograd import is_in_backward
from narrowfloat.pytorch._types import Group, Quantized, TensorLike
from narrowfloat.pytorch.quantized_tensor import QuantizedTensorStorage, Quantizer

__all__ = [
    "API_CALL_MODIFY",
    "HIGH_PRECISION",
    "STANDARD_QUANTIZE",
    "DebugQuantizedTensor",
    "DebugQuantizer",
]

# The plans of a tensor for a gemm, as the log names them.
API_CALL_MODIFY = "modify_tensor()"
STANDARD_QUANTIZE = "Quantize"
HIGH_PRECISION = "High Precision"


class DebugQuantizer(Quantizer["DebugQuantizedTensor"]):
    """Handles one tensor of a layer during one forward and backward pass.

    layer_name: as configurations select it. tensor_name: a key of USES, which gives the gemm that
    reads the "rowwise" form and the gemm that reads the "columnwise" form. parent_quantizer: the
    layer's quantizer without debugging; None in high precision, and for the results output, dgrad
    and wgrad.
    tp_group, tp_size: passed to features that inspect.
    The constructor queries every feature for the current iteration. It sets `rowwise_tensor_plan`
    and `columnwise_tensor_plan` to the chosen plans, and `inspect_tensor_enabled` to whether
    features inspect the tensor. get_next_debug_iter() returns the iteration of the next query.
    Errors: KeyError for another tensor name; AssertionError for a result with a parent.
    """

    def __init__(
        self,
        layer_name: str,
        tensor_name: str,
        parent_quantizer: Quantizer | None,
        tp_group: Group = None,
        tp_size: int = 1,
    ) -> None:
        super().__init__(rowwise=True, columnwise=True)
        use = USES[tensor_name]
        self.layer_name = layer_name
        self.tensor_name = tensor_name
        self.parent_quantizer = parent_quantizer
        self.tp_group = tp_group
        self.tp_size = tp_size
        self.iteration = TEDebugState.get_iteration()
        self.next_debug_iter: int | None = None
        self.output_tensor = use.is_result
        self.rowwise_gemm_name = use.rowwise
        self.columnwise_gemm_name = use.columnwise
        self.columnwise_tensor_plan: str | None = None
        self.inspect_tensor_postquantize_enabled_rowwise = False
        self.inspect_tensor_postquantize_enabled_columnwise = False
        self.inspect_tensor_enabled = self._ask_enabled("inspect_tensor_enabled")
        if self.output_tensor:
            assert parent_quantizer is None, (
                f"{ERROR} {tensor_name} is the result of a gemm and is not quantized in debug mode"
            )
            self.rowwise_tensor_plan = self._result_plan()
        else:
            self._ask_about_operand()

    # Queries of features.

    def _ask_enabled(self, question: str, **selectors: Any) -> bool:
        answer = self._ask(question, iteration=self.iteration, **selectors)
        if isinstance(answer, bool):
            answer = (answer, self.iteration + 1)
        enabled, again = answer
        self._ask_again(again)
        return bool(enabled)

    def _ask_again(self, iteration: int | None) -> None:
        wanted = (self.next_debug_iter, iteration)
        self.next_debug_iter = min((i for i in wanted if i is not None), default=None)

    def _ask(self, question: str, **arguments: Any) -> Any:  # noqa: ANN401  # the answer of any feature
        if question != "fp8_gemm_enabled":  # a gemm is enabled or disabled for all its tensors
            arguments["tensor_name"] = self.tensor_name
        return ask(question, self.layer_name, **arguments)

    def _result_plan(self) -> str:
        gemm = self.rowwise_gemm_name
        modified = self._ask_enabled("modify_tensor_enabled", gemm=gemm)
        return API_CALL_MODIFY if modified else HIGH_PRECISION

    def _ask_about_operand(self) -> None:
        question, gemms = "inspect_tensor_postquantize_enabled", self._gemms()
        self.inspect_tensor_postquantize_enabled_rowwise = self._ask_enabled(
            question, gemm=gemms[0]
        )
        self.inspect_tensor_postquantize_enabled_columnwise = self._ask_enabled(
            question, gemm=gemms[1]
        )
        self.rowwise_tensor_plan, self.columnwise_tensor_plan = map(self._operand_plan, gemms)
        for gemm, plan in zip(gemms, self._plans(), strict=True):
            log_once(f"Tensor: {self.tensor_name}, gemm {gemm} - {plan}", self.layer_name)

    def _operand_plan(self, gemm: str) -> str:
        if self._ask_enabled("modify_tensor_enabled", gemm=gemm):
            return API_CALL_MODIFY
        if self.parent_quantizer is None:
            return HIGH_PRECISION
        if self._ask_enabled("fp8_gemm_enabled", gemm=gemm):
            return STANDARD_QUANTIZE
        # Queries again even if it is off for good: the layer's normal path would quantize.
        self._ask_again(self.iteration + 1)
        return HIGH_PRECISION

    def _gemms(self) -> tuple[str, str]:
        assert self.columnwise_gemm_name is not None
        return self.rowwise_gemm_name, self.columnwise_gemm_name

    def _plans(self) -> tuple[str, str | None]:
        return self.rowwise_tensor_plan, self.columnwise_tensor_plan

    def makes_as(self, other: DebugQuantizer) -> bool:
        """Returns whether both quantizers make the same forms: equal plans and the same parent."""
        return self._plans() == other._plans() and self.parent_quantizer is other.parent_quantizer

    def get_next_debug_iter(self) -> int | None:
        """Returns the earliest iteration in which a feature's result may differ; None if none."""
        return self.next_debug_iter

    def any_feature_enabled(self) -> bool:
        """Returns whether a feature inspects or replaces the tensor or disables quantization."""
        if (
            self.inspect_tensor_enabled
            or self.inspect_tensor_postquantize_enabled_rowwise
            or self.inspect_tensor_postquantize_enabled_columnwise
            or API_CALL_MODIFY in self._plans()
        ):
            return True
        return self.parent_quantizer is not None and HIGH_PRECISION in self._plans()

    # The parent.

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Makes the parent return cacheable tensors with scales that features can read, in a call.

        Normal passes of the layer use the same parent, so its settings are restored.
        """
        parent = self.parent_quantizer
        if parent is None or not (parent.internal or parent.optimize_for_gemm):
            yield
            return
        kept = parent.internal, parent.optimize_for_gemm
        parent.internal = parent.optimize_for_gemm = False
        try:
            yield
        finally:
            parent.internal, parent.optimize_for_gemm = kept

    @property
    def _parent(self) -> Quantizer:
        """The parent. Requires: a plan that quantizes by it."""
        assert self.parent_quantizer is not None
        return self.parent_quantizer

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Changes which gemms read the tensor; the parent makes only quantized directions."""
        super().set_usage(rowwise=rowwise, columnwise=columnwise)
        if STANDARD_QUANTIZE in self._plans():
            self._parent.set_usage(
                rowwise=self.rowwise_usage and self.rowwise_tensor_plan == STANDARD_QUANTIZE,
                columnwise=(
                    self.columnwise_usage and self.columnwise_tensor_plan == STANDARD_QUANTIZE
                ),
            )

    def _set_parent_usage(self) -> None:
        """Sets the directions that the parent makes. Always rowwise: some formats need it."""
        columnwise = self.columnwise_usage and self.columnwise_tensor_plan == STANDARD_QUANTIZE
        self._parent.set_usage(rowwise=True, columnwise=columnwise)

    def supports_only_rowwise_all_gather(self) -> bool:
        parent = self.parent_quantizer
        return parent is not None and parent.supports_only_rowwise_all_gather()

    def is_quantizable(self, inp: torch.Tensor) -> bool:
        return self.parent_quantizer is None or self.parent_quantizer.is_quantizable(inp)

    def make_empty(  # type: ignore[override]  # a plain tensor without a parent
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> TensorLike:
        """Returns an empty tensor made by the parent, or a plain tensor if there is no parent."""
        options: dict[str, Any] = {
            "dtype": dtype,
            "device": device,
            "requires_grad": requires_grad,
            "pin_memory": pin_memory,
        }
        if self.parent_quantizer is not None:
            with self._readable():
                return self.parent_quantizer.make_empty(shape, **options)
        return torch.empty(tuple(shape), **options)

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Raises RuntimeError: amaxes are not collected in debug mode."""
        raise RuntimeError(f"{ERROR} Calibration with debug is not supported")

    # Operands.

    def quantize(
        self,
        tensor: torch.Tensor,
        *,
        out: Quantized | None = None,
        dtype: torch.dtype | None = None,
    ) -> DebugQuantizedTensor:
        """Returns both forms of an operand by its plans, and calls the features that inspect it.

        dtype: of plain forms and of forms that features make. out: is filled, as update_quantized()
        does, instead of a new tensor. Errors: AssertionError for a result; ValueError if a feature
        returns another dtype.
        """
        assert not self.output_tensor, f"{ERROR} {self.tensor_name} is the result of a gemm"
        if out is not None:
            assert isinstance(out, DebugQuantizedTensor)
            return self.update_quantized(tensor, out)
        with self._readable():
            return self._make_forms(tensor, dtype)

    def _make_forms(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> DebugQuantizedTensor:
        quantized = None
        if STANDARD_QUANTIZE in self._plans():
            self._set_parent_usage()
            quantized = self._parent(tensor)
        plain = tensor if dtype is None else tensor.to(dtype)
        # The order of these calls is part of the features' contract.
        columnwise, rowwise = (
            self._make_form(plan, gemm, tensor, quantized, plain, dtype)
            for plan, gemm in zip(self._plans()[::-1], self._gemms()[::-1], strict=True)
        )
        self._inspect(tensor, rowwise, columnwise)
        return self._pair(rowwise, columnwise)

    def _pair(self, rowwise: TensorLike, columnwise: TensorLike) -> DebugQuantizedTensor:
        return DebugQuantizedTensor(
            rowwise_gemm_tensor=rowwise,
            columnwise_gemm_tensor=columnwise,
            quantizer=self,
            layer_name=self.layer_name,
            tensor_name=self.tensor_name,
        )

    def _make_form(
        self,
        plan: str | None,
        gemm: str,
        tensor: torch.Tensor,
        quantized: TensorLike | None,
        plain: torch.Tensor,
        dtype: torch.dtype | None,
    ) -> TensorLike:
        if plan == STANDARD_QUANTIZE:
            assert quantized is not None
            return quantized
        if plan == HIGH_PRECISION:
            return plain
        form = self._modify(gemm, tensor, dtype=dtype)
        if dtype is not None and form.dtype != dtype:
            raise ValueError(
                f"Dtype does not match the output of the modify_tensor call: layer "
                f"{self.layer_name}, gemm {gemm}, {self.tensor_name} is {form.dtype}, not {dtype}"
            )
        return form

    def _modify(self, gemm: str, tensor: torch.Tensor, **options: Any) -> Any:  # noqa: ANN401  # the answer of any feature
        return self._ask(
            "modify_tensor",
            gemm=gemm,
            tensor=tensor,
            default_quantizer=self.parent_quantizer,
            iteration=self.iteration,
            **options,
        )

    def update_quantized(
        self,
        src: torch.Tensor,
        dst: Quantized,
        *,
        noop_flag: torch.Tensor | None = None,
    ) -> DebugQuantizedTensor:
        """Fills the forms of `dst` again by the plans that quantize() made them with.

        Errors: AssertionError for a noop_flag, or if a feature returns a tensor instead of None.
        """
        assert noop_flag is None, f"{ERROR} debug mode takes no noop_flag"
        assert isinstance(dst, DebugQuantizedTensor)
        with self._readable():
            return self._refill_forms(src, dst)

    def _refill_forms(self, src: torch.Tensor, dst: DebugQuantizedTensor) -> DebugQuantizedTensor:
        if STANDARD_QUANTIZE in self._plans():
            self._set_parent_usage()
        done: list[Any] = []  # one object may be the form of both gemms
        forms = (dst.columnwise_gemm_tensor, dst.rowwise_gemm_tensor)
        for plan, gemm, form in zip(self._plans()[::-1], self._gemms()[::-1], forms, strict=True):
            if form is None or any(form is other for other in done):
                continue
            self._refill(plan, gemm, src, form)
            done.append(form)
        self._inspect(src, dst.rowwise_gemm_tensor, dst.columnwise_gemm_tensor)
        return dst

    def _refill(self, plan: str | None, gemm: str, src: torch.Tensor, form: TensorLike) -> None:
        if plan == STANDARD_QUANTIZE:
            quantized: Any = form
            self._parent.update_quantized(src, quantized)
        elif plan == HIGH_PRECISION:
            form.copy_(src)
        else:
            returned = self._modify(gemm, src, out=form)
            assert returned is None, (
                f"{ERROR} modify_tensor fills out and returns None, returned {type(returned)}"
            )

    def wrap_quantized_tensor(self, tensor: QuantizedTensorStorage) -> DebugQuantizedTensor:
        """Wraps a parameter that is already quantized, as the weight of both gemms.

        Features that inspect it get no high-precision tensor.
        Errors: AssertionError unless both plans are STANDARD_QUANTIZE.
        """
        assert self._plans() == (STANDARD_QUANTIZE, STANDARD_QUANTIZE), (
            f"{ERROR} the {self.tensor_name} of {self.layer_name} is a quantized parameter: no "
            f"feature can modify it or turn its gemms off, plans are {self._plans()}"
        )
        with self._readable():
            self._inspect(None, tensor, tensor)
        return self._pair(tensor, tensor)

    # Results.

    def process_gemm_output(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the result of a gemm, as features modify it.

        Raises AssertionError for an operand.
        """
        assert self.output_tensor, f"{ERROR} {self.tensor_name} is the operand of a gemm"
        if self.rowwise_tensor_plan == API_CALL_MODIFY:
            tensor = self._modify(self.rowwise_gemm_name, tensor)
        self._inspect(tensor, None, None)
        return tensor

    def _inspect(
        self, tensor: torch.Tensor | None, rowwise: TensorLike | None, columnwise: TensorLike | None
    ) -> None:
        """Calls the features that inspect the tensor, once per microbatch.

        Skips tensors of fprop during backward, because they were inspected before: an activation
        checkpoint runs the forward pass again, or a layer quantizes its input again.
        """
        if self.rowwise_gemm_name == "fprop" and is_in_backward():
            return
        seen = {
            "iteration": TEDebugState.get_iteration(),
            "tp_group": self.tp_group,
            "tp_size": self.tp_size,
        }
        if self.inspect_tensor_enabled:
            self._ask(
                "inspect_tensor",
                tensor=tensor,
                rowwise_quantized_tensor=rowwise,
                columnwise_quantized_tensor=columnwise,
                quantizer=self.parent_quantizer,
                **seen,
            )
        after = (
            (self.inspect_tensor_postquantize_enabled_rowwise, self.rowwise_tensor_plan, rowwise),
            (
                self.inspect_tensor_postquantize_enabled_columnwise,
                self.columnwise_tensor_plan,
                columnwise,
            ),
        )
        for is_rowwise, (enabled, plan, form) in zip((True, False), after, strict=True):
            if enabled and plan != HIGH_PRECISION:
                self._ask("inspect_tensor_postquantize", tensor=form, rowwise=is_rowwise, **seen)
