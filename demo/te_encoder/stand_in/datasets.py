# SPDX-License-Identifier: Apache-2.0
"""Stands for Hugging Face's datasets: sentences that a rule makes, right or wrong.

A sentence is acceptable where its verb agrees with its subject. Seven of ten do, as in CoLA.
"""

import random

import numpy as np

_SIZES = {"train": 1024, "validation": 256}
_SHARE = 0.7
_NOUNS = ("dog", "child", "teacher", "engine", "river", "poet", "signal", "guest")
_VERBS = ("wait", "sing", "run", "return", "sleep", "turn", "answer", "leave")
_PLACES = ("in the garden", "near the bridge", "behind the house", "after the storm")
_PLURALS = {"child": "children"}


def _sentence(source: random.Random, acceptable: bool) -> str:
    noun, is_plural = source.choice(_NOUNS), source.random() < 0.5
    subject = _PLURALS.get(noun, f"{noun}s") if is_plural else noun
    verb = source.choice(_VERBS)
    verb = verb if is_plural == acceptable else f"{verb}s"
    return f"the {subject} {source.choice(_PLACES)} {verb} ."


class Dataset:
    """The columns `sentence` and `label`."""

    def __init__(self, split: str) -> None:
        source = random.Random(split)
        labels = [source.random() < _SHARE for _ in range(_SIZES[split])]
        self.columns: dict[str, list[str] | np.ndarray] = {
            "sentence": [_sentence(source, label) for label in labels],
            "label": np.array(labels, np.int64),
        }

    def set_format(self, **options: object) -> None:
        """Does nothing: columns are NumPy's already."""

    def __getitem__(self, column: str) -> list[str] | np.ndarray:
        return self.columns[column]


def load_dataset(path: str, name: str, split: str) -> Dataset:
    """Returns the sentences of a split."""
    return Dataset(split)
