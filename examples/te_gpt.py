# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT of TransformerEngine's modules in bf16 and with every recipe.

It is written for a GPU and does not mention narrowfloat. On a CPU:

    python -m narrowfloat.te examples/te_gpt.py

Prints a table to stdout and draws the loss curves (PNG and SVG).
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
import transformer_engine.pytorch as te
from char_transformer import Text
from loss_curves import draw
from transformer_engine.common import recipe

DEVICE = "cuda"
LENGTH, WIDTH, HEADS, LAYERS = 64, 128, 4, 2
ALIGNMENT = 32  # of a product's dimensions, in every recipe
RECIPES = {
    "bf16": None,
    "fp8 delayed": recipe.DelayedScaling(amax_history_len=16),
    "fp8 current": recipe.Float8CurrentScaling(),
    "mxfp8": recipe.MXFP8BlockScaling(),
    "fp8 blockwise": recipe.Float8BlockScaling(),
    "nvfp4": recipe.NVFP4BlockScaling(),
}


class GPT(torch.nn.Module):
    """A decoder with rotary positions, RMSNorm and SwiGLU."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.alphabet = alphabet
        classes = -(-alphabet // ALIGNMENT) * ALIGNMENT
        self.embedding = torch.nn.Embedding(classes, WIDTH)
        self.positions = te.RotaryPositionEmbedding(WIDTH // HEADS)
        self.layers = torch.nn.ModuleList(self._layer(number + 1) for number in range(LAYERS))
        self.head = te.LayerNormLinear(
            WIDTH, classes, normalization="RMSNorm", bias=False, params_dtype=torch.bfloat16
        )

    @staticmethod
    def _layer(number: int) -> te.TransformerLayer:
        return te.TransformerLayer(
            WIDTH,
            4 * WIDTH,
            HEADS,
            layer_number=number,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            self_attn_mask_type="causal",
            attn_input_format="bshd",
            normalization="RMSNorm",
            activation="swiglu",
            bias=False,
            params_dtype=torch.bfloat16,
        )

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(codes).to(torch.bfloat16)
        positions = self.positions(codes.shape[1])
        for layer in self.layers:
            hidden = layer(hidden, rotary_pos_emb=positions)
        return self.head(hidden)[..., : self.alphabet]


def train(name: str, text: Text, steps: int, batch: int) -> tuple[list[float], float]:
    """Trains a model with a recipe. Returns the losses and the seconds per step."""
    torch.manual_seed(1)
    torch.cuda.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    model = GPT(len(text.alphabet)).cuda()
    optimizer = te.optimizers.FusedAdam(model.parameters(), lr=2e-3, master_weights=True)
    chosen = RECIPES[name]
    losses = []
    begin = time.perf_counter()
    for _ in range(steps):
        inputs, targets = (part.to(DEVICE) for part in text.batch(batch, LENGTH, generator))
        optimizer.zero_grad()
        with te.autocast(enabled=chosen is not None, recipe=chosen):
            logits = model(inputs)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (time.perf_counter() - begin) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16, help="pieces of text per step")
    parser.add_argument("--out", type=Path, default=Path("build/te_gpt"), help="folder of results")
    parser.add_argument("--json", action="store_true", help="print one JSON object, not a table")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    text, curves, lines = Text(), {}, []
    for name in arguments.runs:
        losses, seconds = train(name, text, arguments.steps, arguments.batch)
        curves[name] = losses
        last = losses[-20:]
        lines.append(f"{name:<14}  {sum(last) / len(last):>12.4f}  {seconds * 1e3:>9.0f}")
    pictures = [str(path) for path in draw(curves, arguments.out / "loss")]
    if arguments.json:
        print(json.dumps({"losses": curves, "pictures": pictures}))
        return
    print(f"{'run':<14}  {'last 20 steps':>12}  {'ms a step':>9}", *lines, sep="\n")
    print(f"\nlosses in nats per character; curves: {', '.join(pictures)}")


if __name__ == "__main__":
    main()
