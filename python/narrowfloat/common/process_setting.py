# SPDX-License-Identifier: Apache-2.0
"""A setting of the process, for its whole run or for the time of a context."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class _Setting:
    owner: weakref.ref[object] | None
    value: str

    def is_for_good(self) -> bool:
        return self.owner is None or self.owner() is None


class ProcessSetting:
    """A value that several owners set; the latest setting that is not removed applies.

    Owners are objects. They may remove their settings in any order and from any thread. A setting
    becomes permanent when its owner is deleted. Assigning `value` is a permanent setting too.
    set() and take_back() call `apply`, if given, with the current value; an assignment does not.
    read: returns the value of a setting that other code may also change; a change counts as an
    assignment.
    """

    def __init__(
        self,
        value: str,
        apply: Callable[[str], object] | None = None,
        read: Callable[[], str] | None = None,
    ) -> None:
        self.value = value
        self._apply = apply
        self._read = read
        self._lock = threading.Lock()
        self._settings: list[_Setting] = [_Setting(None, value)]

    def set(self, owner: object, value: str) -> None:
        """Sets the value; take_back() with `owner` removes the setting."""
        with self._lock:
            self._note_assigned()
            # Of adjacent permanent settings only the last one can become current again.
            kept = [
                setting
                for setting, following in pairwise(self._settings)
                if not (setting.is_for_good() and following.is_for_good())
            ]
            self._settings = [*kept, self._settings[-1], _Setting(weakref.ref(owner), value)]
            self._hold_latest()

    def take_back(self, owner: object, with_later: bool = False) -> None:
        """Removes the latest setting of an owner, if there is one.

        with_later: removes the permanent settings after it too.
        """
        with self._lock:
            self._note_assigned()
            own = [i for i, one in enumerate(self._settings) if one.owner and one.owner() is owner]
            if own:
                later = self._settings[own[-1] + 1 :]
                kept = [one for one in later if not (with_later and one.is_for_good())]
                self._settings[own[-1] :] = kept
            self._hold_latest()

    def _note_assigned(self) -> None:
        if self._read is not None:
            self.value = self._read()
        if self.value != self._settings[-1].value:
            self._settings.append(_Setting(None, self.value))

    def _hold_latest(self) -> None:
        self.value = self._settings[-1].value
        if self._apply is not None:
            self._apply(self.value)
