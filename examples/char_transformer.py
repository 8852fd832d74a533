# SPDX-License-Identifier: Apache-2.0
"""A small character-level transformer and its text, the documents of this repository."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parent.parent


class Text:
    """The characters of docs/*.md as numbers; the last tenth is kept for validation."""

    def __init__(self) -> None:
        text = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
        self.alphabet = sorted(set(text))
        numbers = {character: i for i, character in enumerate(self.alphabet)}
        codes = torch.tensor([numbers[character] for character in text])
        cut = len(codes) * 9 // 10
        self.training, self.validation = codes[:cut], codes[cut:]

    def batch(
        self, count: int, length: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws `count` pieces of the training text: inputs and, for each, the next character."""
        starts = torch.randint(len(self.training) - length, (count,), generator=generator)
        pieces = torch.stack([self.training[s : s + length + 1] for s in starts])
        return pieces[:, :-1], pieces[:, 1:]

    def validation_batch(self, count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cuts the first `count` pieces of the validation text, one after another."""
        pieces = self.validation[: count * length + 1]
        return pieces[:-1].view(count, length), pieces[1:].view(count, length)


class RootMeanSquareNorm(nn.Module):
    """Divides each vector by its root mean square, in fp32, and scales it.

    Written with plain operators: the sums of torch's fused backward depend on the threads.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return wide * self.weight


class Block(nn.Module):
    """Causal attention and a two-layer perceptron, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = RootMeanSquareNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.perceptron_norm = RootMeanSquareNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Returns (batch, length, width) for x (batch, length, width)."""
        batch, length, width = x.shape
        split = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.query_key_value(x).view(split).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2)).float() * (width // self.heads) ** -0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.projection((weights @ value).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.perceptron_norm(x))))


class CharTransformer(nn.Module):
    """Predicts the next character."""

    def __init__(
        self,
        characters: int,
        *,
        width: int = 128,
        layers: int = 2,
        heads: int = 4,
        length: int = 64,
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        # With torch's default of unit variance for embeddings, the smaller position embeddings have
        # no effect: training then learns only pairs of characters.
        nn.init.normal_(self.characters.weight, std=0.02)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = RootMeanSquareNorm(width)
        self.head = nn.Linear(width, characters)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Returns scores (batch, length, characters) for codes (batch, length)."""
        x = self.characters(codes) + self.places[: codes.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
