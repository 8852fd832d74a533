# SPDX-License-Identifier: Apache-2.0
"""Replaces the features by answers that a test chooses, and records the questions."""

from collections.abc import Callable
from typing import Any

import pytest
from narrowfloat.debug.pytorch import debug_quantization
from narrowfloat.debug.pytorch.debug_state import TEDebugState

# The answers of a session without a configuration.
DEFAULTS = {
    "fp8_gemm_enabled": (True, None),
    "modify_tensor_enabled": (False, None),
    "inspect_tensor_enabled": (False, None),
    "inspect_tensor_postquantize_enabled": (False, None),
    "inspect_tensor": None,
    "inspect_tensor_postquantize": None,
}


class Features:
    """Answers by question, or by question and gemm; a callable answer gets the arguments.

    asked: (question, gemm or None, tensor_name or None) in order. arguments: by question, the
    arguments of its last call.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: dict[Any, Any]) -> None:
        self.answers: dict[Any, Any] = {**DEFAULTS, **answers}
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.arguments: dict[str, dict[str, Any]] = {}
        self.messages: list[str] = []
        self.iteration = 0
        monkeypatch.setattr(debug_quantization, "ask", self._ask)
        monkeypatch.setattr(debug_quantization, "log_once", self._log)
        monkeypatch.setattr(TEDebugState, "get_iteration", lambda: self.iteration)

    def _ask(self, question: str, layer_name: str, **arguments: object) -> object:
        gemm, tensor_name = arguments.get("gemm"), arguments.get("tensor_name")
        self.asked.append((question, gemm, tensor_name))
        self.arguments[question] = {"layer_name": layer_name, **arguments}
        answer = self.answers.get((question, gemm), self.answers.get(question))
        return answer(**arguments) if isinstance(answer, Callable) else answer

    def _log(self, message: str, layer_name: str) -> None:
        self.messages.append(message)

    def questions(self) -> list[tuple[str, str | None]]:
        """Returns the questions and gemms since the last call, and clears the record."""
        found = [(question, gemm) for question, gemm, _ in self.asked]
        self.asked.clear()
        return found
