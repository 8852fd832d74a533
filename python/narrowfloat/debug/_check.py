# SPDX-License-Identifier: Apache-2.0
"""Checks a configuration without running the model: lists its problems and plans each layer."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narrowfloat.debug import features
from narrowfloat.debug._block_rules import RULES, findings, unread
from narrowfloat.debug._grammar import ERROR, TENSORS
from narrowfloat.debug._namespace import namespace
from narrowfloat.debug._plan import LayerPlan, Planner, Step
from narrowfloat.debug._selectors import findings_of_selectors, select

if TYPE_CHECKING:
    from narrowfloat.debug._host import BaseNamespaceAPI

FEATURES = Path(features.__file__).parent
OWN_KEYS = ("enabled", "layers")


@dataclass(frozen=True)
class Problem:
    """A problem that would stop the run or be ignored by it, and its location."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass
class Report:
    """problems: in the order of the configuration. plans: by layer, or by section if no layers are
    known. sections: the section that selects a layer, by layer."""

    problems: list[Problem] = field(default_factory=list)
    plans: dict[str, LayerPlan] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)
    by_layer: bool = False

    def add(self, place: str, message: str) -> None:
        """Adds a problem unless it is listed already."""
        problem = Problem(place, message)
        if problem not in self.problems:
            self.problems.append(problem)

    def as_json(self) -> dict[str, Any]:
        """Returns a dict with the keys of docs/debug.md."""
        plans = {name: plan.as_json() for name, plan in self.plans.items()}
        for name, section in self.sections.items():
            plans[name]["section"] = section
        return {
            "problems": [{"place": p.place, "message": p.message} for p in self.problems],
            "layers" if self.by_layer else "sections": plans,
        }


def check(config: Mapping[str, Any], layers: list[str] | None = None) -> Report:
    """Returns the problems of a configuration, and the plan of each layer.

    layers: the names of all layers of the model; None if they are not known. The plan is for a
    quantized layer; it is missing if problems prevent a plan.
    Errors: ModuleNotFoundError without the host.
    """
    report = Report(by_layer=layers is not None)
    enabled = [name for name in config if _check_section(report, name, config[name])]
    if not enabled:
        report.add("configuration", "at least one section must be enabled, got none")
        return report
    choices = _choose(report, config, enabled, layers)
    with _session(config) as (api, known, refusal):
        for name in enabled:
            for key in config[name]:
                if key not in (*OWN_KEYS, namespace()) and key not in known:
                    report.add(
                        f"section {name}",
                        f"{key} is neither the namespace {namespace()} nor a feature of the host",
                    )
        if refusal is not None and not report.problems:
            report.add("configuration", refusal)
        if refusal is None:
            _make_plans(report, api, config, choices)
    return report


def _check_section(report: Report, name: str, section: object) -> bool:
    """Returns whether the section is enabled; adds its problems to the report."""
    place = f"section {name}"
    if not isinstance(section, Mapping):
        report.add(place, f"a section must be a mapping, got {section!r}")
        return False
    if "enabled" not in section:
        report.add(place, "enabled is missing")
        return False
    if not isinstance(section["enabled"], bool):
        report.add(place, f"enabled must be True or False, got {section['enabled']!r}")
        return False
    if not section["enabled"]:
        return False
    if "layers" not in section:
        report.add(place, "layers is missing")
    else:
        for message in findings_of_selectors(section["layers"]):
            report.add(place, message)
    for key in section:
        if not isinstance(key, str):
            report.add(place, f"keys must be strings, got {key!r}")
    _check_features(report, place, section)
    return True


def _check_features(report: Report, place: str, section: Mapping[str, Any]) -> None:
    blocks = section.get(namespace())
    if namespace() in section and not isinstance(blocks, Mapping):
        report.add(place, f"{namespace()} must be a mapping of features, got {blocks!r}")
        return
    for feature, block in (blocks or {}).items():
        where = f"{place}, {feature}"
        if feature not in RULES:
            report.add(where, f"must be one of the features {', '.join(RULES)}")
            continue
        found = [_words(finding.error) for finding in findings(feature, block)]
        if not found and block.get("enabled"):
            found = list(unread(feature, block))
        for message in found:
            report.add(where, message)
    bases = [key for key in section if key not in (*OWN_KEYS, namespace())]
    if len(bases) > 1:
        report.add(place, f"of {' and '.join(map(str, bases))} the host keeps the last")


def _words(error: Exception) -> str:
    """Returns the text of an error without the prefix that it has in a run's log."""
    return str(error).removeprefix(ERROR).strip()


def _choose(
    report: Report, config: Mapping[str, Any], enabled: list[str], layers: list[str] | None
) -> dict[str, str]:
    """Returns the layers to plan and the configuration section of each; else the sections."""
    if layers is None:
        return {name: name for name in enabled}
    chosen: dict[str, list[str]] = {layer: [] for layer in layers}
    for name in enabled:
        if any(True for _ in findings_of_selectors(config[name].get("layers"))):
            continue
        selected, messages = select(config[name]["layers"], layers)
        for message in messages:
            report.add(f"section {name}", message)
        for layer in selected:
            chosen[layer].append(name)
    for layer, names in chosen.items():
        if len(names) > 1:
            report.add(f"layer {layer}", f"is selected by sections {' and '.join(names)}")
    return {layer: names[0] if len(names) == 1 else "" for layer, names in chosen.items()}


@contextlib.contextmanager
def _session(config: Mapping[str, Any]) -> Iterator[tuple[Any, set[str], str | None]]:
    """Runs a session of the host.

    Yields the namespace's object, the keys that a section may have, and the reason why the host
    refuses the configuration, or None. Prints nothing and deletes the log files.

    Errors: RuntimeError while another session runs.
    """
    import nvdlfw_inspect.api as host
    from nvdlfw_inspect.registry import Registry

    running = host.DEBUG_MANAGER
    if running is not None:
        raise RuntimeError("check: must be called while no session runs, because it starts its own")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        silent = contextlib.redirect_stdout(io.StringIO())
        refusal = None
        try:
            with silent:
                try:
                    host.initialize(dict(config), feature_dirs=[str(FEATURES)], log_dir=folder)
                except Exception as error:  # the host raises many kinds of errors
                    refusal = f"the host refuses it: {type(error).__name__}: {error}"
            known = {*Registry.data, *Registry.data["base"].features}
            yield host.DEBUG_MANAGER._namespace_apis[namespace()], known, refusal
        finally:
            with silent:
                host.end_debug()


def _make_plans(
    report: Report, api: BaseNamespaceAPI, config: Mapping[str, Any], choices: Mapping[str, str]
) -> None:
    for name, section in choices.items():
        blocks = config[section].get(namespace()) or {} if section else {}
        try:
            plan = Planner(api, blocks).plan()
        except (AssertionError, ValueError) as error:
            # Problems of its blocks that were found without a plan are listed already.
            if not any(
                problem.place.startswith(f"section {section}") for problem in report.problems
            ):
                report.add(f"section {section}", f"leaves no plan: {_words(error)}")
            continue
        for message in plan.findings:
            report.add(f"section {section}", message)
        report.plans[name] = plan
        if section and report.by_layer:
            report.sections[name] = section


def text(report: Report) -> str:
    """Returns the problems, then the plans; layers with equal plans are listed together."""
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
    for tensor, seeing in plan.seen.items():
        for feature, parameters in seeing.items():
            yield f"  seen   {tensor:{width}}  {feature}{_parameters(parameters)}"


def _step(step: Step) -> str:
    if step.feature is None:
        return step.plan
    return f"{step.plan} by {step.feature}{_parameters(step.parameters)}"


def _parameters(parameters: Mapping[str, Any]) -> str:
    return "".join(f" {key}={value}" for key, value in parameters.items())
