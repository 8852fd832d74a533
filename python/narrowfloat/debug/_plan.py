# SPDX-License-Identifier: Apache-2.0
"""Plans the effect of a section's blocks on a layer, by gemm and tensor, by calling features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from narrowfloat.debug._grammar import GEMMS, OPERANDS, RESULTS, TENSORS, USES
from narrowfloat.debug.pytorch.debug_quantization import (
    API_CALL_MODIFY,
    HIGH_PRECISION,
    STANDARD_QUANTIZE,
)

if TYPE_CHECKING:
    from narrowfloat.debug._host import BaseNamespaceAPI

Blocks = Mapping[str, Mapping[str, Any]]

# Keys of a narrowed block that name the gemm and the tensor.
CHOSEN = ("gemm", "tensor", "enabled")


@dataclass(frozen=True)
class Step:
    """The plan of a tensor for a gemm, and the feature that causes it, with its parameters.

    plan: a plan constant of debug_quantization.py.
    """

    plan: str
    feature: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Returns a dict with the keys of docs/debug.md."""
        return {"plan": self.plan, "feature": self.feature, "parameters": dict(self.parameters)}


@dataclass
class LayerPlan:
    """gemms: steps by gemm and tensor, for a quantized layer. seen: parameters of the inspecting
    features, by tensor and feature. findings: problems.
    """

    gemms: dict[str, dict[str, Step]] = field(default_factory=dict)
    seen: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Returns a dict with the keys of docs/debug.md."""
        steps = {
            g: {t: s.as_json() for t, s in tensors.items()} for g, tensors in self.gemms.items()
        }
        return {"gemms": steps, "seen": self.seen}


class Planner:
    """Calls the namespace's API object `api` of a running session, as layers do."""

    def __init__(self, api: BaseNamespaceAPI, blocks: Blocks) -> None:
        self._api = api
        self._blocks = blocks

    def plan(self) -> LayerPlan:
        """Returns the plan of every gemm of a quantized layer."""
        made = LayerPlan()
        for gemm in GEMMS:
            off = self._features_off(gemm)
            results = [tensor for tensor in RESULTS if USES[tensor].rowwise == gemm]
            made.gemms[gemm] = {
                tensor: self._step(gemm, tensor, off, made.findings)
                for tensor in (*OPERANDS[gemm], *results)
            }
            made.findings.extend(self._mixtures(gemm, made.gemms[gemm], off))
        for tensor in TENSORS:
            seen = self._routed("inspect_tensor", tensor_name=tensor)
            seen |= self._routed("inspect_tensor_postquantize", tensor_name=tensor)
            if seen:
                made.seen[tensor] = seen
        return made

    def _routed(self, question: str, **selectors: str) -> dict[str, dict[str, Any]]:
        """Returns the parameters of each enabled feature that the host would call."""
        found = {}
        having = self._api.api_to_features_map.get(question, ())
        for feature, block in self._blocks.items():
            if feature not in having or not block or not block.get("enabled"):
                continue
            is_meant, narrowed = self._api.routing_condition(
                question, dict(block), "", self._api.namespace_features[feature], **selectors
            )
            if is_meant:
                found[feature] = {
                    key: value for key, value in (narrowed or {}).items() if key not in CHOSEN
                }
        return found

    def _features_off(self, gemm: str) -> list[str]:
        """Returns the features that disable a gemm's quantization, if their merged result does."""
        routed = self._routed("fp8_gemm_enabled", gemm=gemm)
        features = self._api.namespace_features
        answers = [
            features[name].fp8_gemm_enabled({"gemm": gemm, **config}, "", gemm=gemm, iteration=0)
            for name, config in routed.items()
        ]
        if not answers:
            return []
        is_on, _ = self._api.handle_multi_feature_output(
            "fp8_gemm_enabled", answers, routed, iteration=0
        )
        return [] if is_on else list(routed)

    def _step(self, gemm: str, tensor: str, off: list[str], findings: list[str]) -> Step:
        modifiers = self._routed("modify_tensor", gemm=gemm, tensor_name=tensor)
        if len(modifiers) > 1:
            findings.append(
                f"gemm {gemm}: {' and '.join(modifiers)} both modify {tensor}, the host takes one"
            )
        for feature, parameters in modifiers.items():
            return Step(API_CALL_MODIFY, feature, parameters)
        if USES[tensor].is_result:
            return Step(HIGH_PRECISION)
        return Step(HIGH_PRECISION, off[0]) if off else Step(STANDARD_QUANTIZE)

    def _mixtures(self, gemm: str, steps: Mapping[str, Step], off: list[str]) -> Iterator[str]:
        """Yields a finding for each gemm with one quantized and one unquantized operand."""
        operands = {tensor: steps[tensor] for tensor in OPERANDS[gemm]}
        quantized = [
            tensor
            for tensor, step in operands.items()
            if step.plan == STANDARD_QUANTIZE
            or (step.plan == API_CALL_MODIFY and step.feature not in off)
        ]
        if 0 < len(quantized) < len(operands):
            plain = [tensor for tensor in operands if tensor not in quantized]
            yield (
                f"gemm {gemm}: {quantized[0]} is quantized ({operands[quantized[0]].feature}) and "
                f"{plain[0]} is not ({operands[plain[0]].feature}); a gemm needs both of one kind"
            )
