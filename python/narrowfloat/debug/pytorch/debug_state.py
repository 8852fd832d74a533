# SPDX-License-Identifier: Apache-2.0
"""Returns whether a debug session runs, and stores the state that all its layers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from narrowfloat.debug.pytorch._session import is_imported, running_host
from narrowfloat.pytorch.module.watching import next_layer_number


class TEDebugState:
    """The state that all layers of the process share; the name is TransformerEngine's.

    debug_enabled: whether a session ran when a layer was last made; None before that.
    weight_tensor_tp_group_reduce: whether statistics of weights go over the tensor-parallel group.
    """

    weight_tensor_tp_group_reduce: ClassVar[bool] = True
    debug_enabled: ClassVar[bool | None] = None
    _at_reset: ClassVar[list[Callable[[], None]]] = []  # other functions that clear state at reset

    @classmethod
    def initialize(cls) -> None:
        """Prepares the state. Every layer calls this when it is made.

        Errors: RuntimeError if an earlier layer found the host imported and no session running,
        and now one runs: that earlier layer may have missed iterations.
        """
        if not is_imported():
            return
        running = running_host() is not None
        if running and cls.debug_enabled is False:
            raise RuntimeError(
                "[nv_dlfw_inspect] nv_dlfw_inspect module should be initialized before "
                "initialization of the first layer: call initialize() before the model is made"
            )
        cls.debug_enabled = running

    @classmethod
    def _reset(cls) -> None:
        """Clears the state of layers and statistics, at the end of a session."""
        for forget in cls._at_reset:
            forget()
        cls.debug_enabled = None

    @classmethod
    def get_layer_count(cls) -> int:
        """Returns a number for a layer without a name: 1, 2, ... in the order of the calls."""
        return next_layer_number()

    @classmethod
    def set_weight_tensor_tp_group_reduce(cls, enabled: bool) -> None:
        """Sets whether statistics of weights are reduced over the tensor-parallel group."""
        cls.weight_tensor_tp_group_reduce = enabled

    @classmethod
    def get_iteration(cls) -> int:
        """Returns the iteration of the running session. Errors: RuntimeError without one."""
        host = running_host()
        if host is None:
            raise RuntimeError("[nv_dlfw_inspect] no session runs: call initialize() first")
        return host.DEBUG_MANAGER._trainer_iteration_count


def set_weight_tensor_tp_group_reduce(enabled: bool) -> None:
    """Sets whether statistics of weights are reduced over the tensor-parallel group."""
    TEDebugState.set_weight_tensor_tp_group_reduce(enabled)
