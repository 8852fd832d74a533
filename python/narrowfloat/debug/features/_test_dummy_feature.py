# SPDX-License-Identifier: Apache-2.0
"""TestDummyFeature: counts its calls."""

from __future__ import annotations

from typing import Any

from narrowfloat.debug._host import api_method, feature
from narrowfloat.debug.features.api import Enabled, TEConfigAPIMapper

_inspect_tensor_enabled_call_count = 0
_inspect_tensor_call_count = 0


@feature
class TestDummyFeature(TEConfigAPIMapper):
    """Keeps layers in debug mode and does nothing, for tests.

    Keys: `tensors` or `tensors_struct`, and `inspect_only_once`: returns no next iteration. The
    counts are variables of this module, in the package.
    """

    __test__ = False

    @api_method
    def inspect_tensor_enabled(
        self, config: dict[str, Any], *args: Any, **kwargs: Any
    ) -> bool | Enabled:
        """Returns True; with `inspect_only_once`, False and no next iteration."""
        global _inspect_tensor_enabled_call_count
        _inspect_tensor_enabled_call_count += 1
        return (False, None) if config.get("inspect_only_once", False) else True

    @api_method
    def inspect_tensor(self, config: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Counts the calls."""
        global _inspect_tensor_call_count
        _inspect_tensor_call_count += 1
