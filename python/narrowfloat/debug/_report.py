# SPDX-License-Identifier: Apache-2.0
"""A report as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from narrowfloat.debug._check import Report
from narrowfloat.debug._grammar import TENSORS
from narrowfloat.debug._plan import LayerPlan, Step


def text(report: Report) -> str:
    """Problems first, then the plan of each layer; layers with equal plans stand together."""
    lines = [str(problem) for problem in report.problems]
    groups: dict[str, list[str]] = {}
    for name in report.plans:
        groups.setdefault("\n".join(_plan_lines(report.plans[name])), []).append(name)
    for plan, names in groups.items():
        lines += ["", *(_title(report, name) for name in names), plan]
    count = len(report.problems)
    lines += ["", "no problem" if count == 0 else f"{count} problem{'s' if count > 1 else ''}"]
    return "\n".join(lines).strip()


def _title(report: Report, name: str) -> str:
    if not report.by_layer:
        return f"section {name}"
    section = report.sections.get(name)
    return f"layer {name}: " + ("no section" if section is None else f"section {section}")


def _plan_lines(plan: LayerPlan) -> Iterator[str]:
    width = max(map(len, TENSORS))
    for gemm, steps in plan.gemms.items():
        for tensor, step in steps.items():
            yield f"  {gemm}  {tensor:{width}}  {_step(step)}"
    for tensor, features in plan.seen.items():
        for feature, parameters in features.items():
            yield f"  seen   {tensor:{width}}  {feature}{_parameters(parameters)}"


def _step(step: Step) -> str:
    if step.feature is None:
        return step.plan
    return f"{step.plan} by {step.feature}{_parameters(step.parameters)}"


def _parameters(parameters: Mapping[str, Any]) -> str:
    return "".join(f" {key}={value}" for key, value in parameters.items())
