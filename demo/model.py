# SPDX-License-Identifier: Apache-2.0
"""A BERT sentence encoder in NumPy: ids in, a unit vector out.

Source: Devlin et al., "BERT", 2018; Reimers and Gurevych, "Sentence-BERT", 2019. One sentence at a
time, so there is no padding and no mask. Arithmetic is float32 unless stated.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from demo.tokenizer import Tokenizer

Weights = Mapping[str, np.ndarray]

erf = np.vectorize(math.erf, otypes=[np.float32])  # NumPy has no erf


class SentenceModel:
    """Converts sentences to unit vectors, with given weights."""

    def __init__(self, folder: Path, weights: Weights) -> None:
        config = json.loads((folder / "config.json").read_text())
        limits = json.loads((folder / "sentence_bert_config.json").read_text())
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.epsilon: float = config["layer_norm_eps"]
        self.tokenize = Tokenizer(folder / "vocab.txt", limits["max_seq_length"])
        self.weights = weights

    def encode(self, sentence: str) -> np.ndarray:
        x = self.embed(self.tokenize(sentence))
        for layer in range(self.layers):
            x = self.transform(x, f"encoder.layer.{layer}")
        mean = x.mean(axis=0)
        return mean / np.linalg.norm(mean)

    def similarity(self, one: str, other: str) -> float:
        """Returns the cosine similarity of two sentences: 1 is equal, 0 is unrelated."""
        return float(self.encode(one) @ self.encode(other))

    def embed(self, ids: list[int]) -> np.ndarray:
        words, positions, kinds = (
            self.weights[f"embeddings.{table}_embeddings.weight"]
            for table in ("word", "position", "token_type")
        )
        return self.normalize(words[ids] + positions[: len(ids)] + kinds[0], "embeddings")

    def transform(self, x: np.ndarray, layer: str) -> np.ndarray:
        mixed = self.dense(self.attend(x, f"{layer}.attention.self"), f"{layer}.attention.output")
        x = self.normalize(x + mixed, f"{layer}.attention.output")
        hidden = gelu(self.dense(x, f"{layer}.intermediate"))
        return self.normalize(x + self.dense(hidden, f"{layer}.output"), f"{layer}.output")

    def attend(self, x: np.ndarray, name: str) -> np.ndarray:
        """Returns, for every token and head, a weighted mean of all tokens' values."""
        query, key, value = (
            self.linear(x, f"{name}.{part}").reshape(len(x), self.heads, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(1, 2) / np.float32(math.sqrt(query.shape[-1]))
        return (softmax(scores) @ value).swapaxes(0, 1).reshape(x.shape)

    def dense(self, x: np.ndarray, name: str) -> np.ndarray:
        return self.linear(x, f"{name}.dense")

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def normalize(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(self.epsilon))
        scale, shift = (self.weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        return centred / deviation * scale + shift


def softmax(x: np.ndarray) -> np.ndarray:
    # The largest exponent becomes zero, which prevents overflow.
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def gelu(x: np.ndarray) -> np.ndarray:
    """Returns x times the probability that a standard normal variable is below x."""
    return x * (1 + erf(x / math.sqrt(2))) / 2
