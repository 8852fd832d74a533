# SPDX-License-Identifier: Apache-2.0
"""Trains a small language model with quantized products, once with each of several recipes.

usage: python -m demo.jax_training [RECIPE...] [--steps N] [--plot FILE]

The text is Python's standard library, by characters; the model is a transformer of two blocks.
Every recipe starts with the same weights and uses the same text. Weights are kept in float32;
activations are bfloat16. The four matrix products of a block and their gradients with respect to
input and weight multiply quantized tensors.
"""

import argparse
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from narrowfloat.common.recipe import (
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)
from narrowfloat.jax import dense
from narrowfloat.jax.quantize import (
    QuantizeMeta,
    QuantizeMetaSet,
    QuantizerFactory,
    QuantizerSet,
)

WIDTH, HEADS, BLOCKS, CONTEXT, BATCH = 128, 4, 2, 64, 32
RATE, BETAS = 2e-3, (0.9, 0.98)
ROOT = Path(__file__).resolve().parents[1]

Params = dict[str, jax.Array]


# Current scaling: E4M3 forward, E5M2 for gradients, one scale per tensor. MXFP8: E4M3, one power of
# two per 32 elements. NVFP4: four bits, with the Hadamard transform, tiles for weights and
# stochastic rounding for gradients.
RECIPES: dict[str, Recipe | None] = {
    "bfloat16": None,
    "current scaling": Float8CurrentScaling(),
    "MXFP8": MXFP8BlockScaling(),
    "NVFP4": NVFP4BlockScaling(),
}


def make_set(recipe: Recipe | None, state: jax.Array) -> QuantizerSet:
    """Returns the quantizers of a layer. state: seed and offset of stochastic rounding."""
    rounds = isinstance(recipe, NVFP4BlockScaling)
    gradient = QuantizeMeta(stochastic_rounding_rng_state=state) if rounds else QuantizeMeta()
    metas = QuantizeMetaSet(QuantizeMeta(), QuantizeMeta(), gradient)
    return QuantizerFactory.create_set(fp8_recipe=recipe, quantize_meta_set=metas)


def load_text() -> tuple[np.ndarray, int]:
    """Returns the characters of the standard library as numbers, and the alphabet's size."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))[:80]
    text = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in files)
    characters = np.frombuffer(text.encode("ascii", "ignore"), np.uint8)
    alphabet, codes = np.unique(characters, return_inverse=True)
    return codes.astype(np.int32), len(alphabet)


def batches(text: np.ndarray, steps: int) -> Iterator[jax.Array]:
    """Yields pieces of the text, equal in every run."""
    random = np.random.default_rng(0)
    for _ in range(steps):
        starts = random.integers(0, len(text) - CONTEXT - 1, BATCH)
        yield jnp.asarray(np.stack([text[s : s + CONTEXT + 1] for s in starts]))


def make_params(kinds: int) -> Params:
    """Returns the weights before the first step."""
    shapes = {"embed": (kinds, WIDTH), "place": (CONTEXT, WIDTH), "out": (WIDTH, kinds)}
    for i in range(BLOCKS):
        shapes |= {
            f"{i}.qkv": (WIDTH, 3 * WIDTH),
            f"{i}.mix": (WIDTH, WIDTH),
            f"{i}.up": (WIDTH, 4 * WIDTH),
            f"{i}.down": (4 * WIDTH, WIDTH),
        }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    scales = {"embed": 0.02, "place": 0.02}
    return {
        name: jax.random.normal(key, shape) * scales.get(name, shape[0] ** -0.5)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def normalize(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def attend(qkv: jax.Array) -> jax.Array:
    """Returns the causal attention of HEADS heads, in float32."""
    heads = qkv.astype(jnp.float32).reshape(BATCH, CONTEXT, 3, HEADS, WIDTH // HEADS)
    query, key, value = jnp.moveaxis(heads, 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (WIDTH // HEADS) ** -0.5
    allowed = jnp.tril(jnp.ones((CONTEXT, CONTEXT), bool))
    weights = jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    return mixed.reshape(BATCH, CONTEXT, WIDTH).astype(qkv.dtype)


def loss_of(params: Params, text: jax.Array, step: jax.Array, recipe: Recipe | None) -> jax.Array:
    """Returns the mean cross entropy of the next character."""
    weights = {name: weight.astype(jnp.bfloat16) for name, weight in params.items()}
    counter = iter(range(4 * BLOCKS))

    def product(x: jax.Array, name: str) -> jax.Array:
        # Seed and offset of this layer in this step.
        state = jnp.stack([step, jnp.uint32(0), jnp.uint32(next(counter)), jnp.uint32(0)])
        return dense(x, weights[name], quantizer_set=make_set(recipe, state.reshape(1, 4)))

    x = weights["embed"][text[:, :-1]] + weights["place"]
    for i in range(BLOCKS):
        x = x + product(attend(product(normalize(x), f"{i}.qkv")), f"{i}.mix")
        x = x + product(jax.nn.gelu(product(normalize(x), f"{i}.up")), f"{i}.down")
    logits = dense(normalize(x), weights["out"]).astype(jnp.float32)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), text[:, 1:, None], -1)
    return -jnp.mean(chosen)


@functools.partial(jax.jit, static_argnums=4, donate_argnums=(0, 1))
def update(
    params: Params, moments: tuple[Params, Params], text: jax.Array, step: jax.Array, recipe: str
) -> tuple[Params, tuple[Params, Params], jax.Array]:
    """Performs a step of Adam. Returns the new weights and moments, and the loss."""
    loss, gradients = jax.value_and_grad(loss_of)(params, text, step, RECIPES[recipe])
    moved = [
        jax.tree.map(lambda m, g, b=beta, p=power: b * m + (1 - b) * g**p, old, gradients)
        for old, beta, power in zip(moments, BETAS, (1, 2), strict=True)
    ]
    bias = [1 - beta ** (step.astype(jnp.float32) + 1) for beta in BETAS]
    params = jax.tree.map(
        lambda w, m, v: w - RATE * (m / bias[0]) / (jnp.sqrt(v / bias[1]) + 1e-8), params, *moved
    )
    return params, tuple(moved), loss


def train(recipe: str, text: np.ndarray, kinds: int, steps: int) -> list[float]:
    """Returns the loss of every step."""
    params = make_params(kinds)
    moments = tuple(jax.tree.map(jnp.zeros_like, params) for _ in BETAS)
    losses = []
    for step, piece in enumerate(batches(text, steps)):
        params, moments, loss = update(params, moments, piece, jnp.uint32(step), recipe)
        losses.append(float(loss))
    return losses


def smooth(losses: list[float]) -> float:
    """Returns the mean of the last tenth of the losses."""
    return float(np.mean(losses[-max(len(losses) // 10, 1) :]))


def plot(curves: dict[str, list[float]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for recipe, losses in curves.items():
        width = max(len(losses) // 40, 1)
        mean = np.convolve(losses, np.ones(width) / width, "valid")
        axes.plot(np.arange(len(mean)) + width, mean, label=recipe)
    axes.set(xlabel="step", ylabel="cross entropy, nats per character")
    axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=", ".join(RECIPES))
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--plot", type=Path, default=ROOT / "build" / "jax_training.png")
    options = parser.parse_args()
    unknown = [recipe for recipe in options.recipes if recipe not in RECIPES]
    if unknown:
        parser.error(f"RECIPE must be one of {', '.join(RECIPES)}, got '{unknown[0]}'")

    text, kinds = load_text()
    print(f"{len(text) / 1e6:.1f} M characters of {kinds} kinds, {options.steps} steps\n")
    print(f"{'recipe':<16} {'first loss':>10} {'last loss':>10} {'over bfloat16':>14} {'s':>7}")
    curves: dict[str, list[float]] = {}
    for recipe in options.recipes or RECIPES:
        start = time.perf_counter()
        curves[recipe] = train(recipe, text, kinds, options.steps)
        last = smooth(curves[recipe])
        over = last - smooth(curves["bfloat16"]) if "bfloat16" in curves else float("nan")
        took = time.perf_counter() - start
        first = curves[recipe][0]
        print(f"{recipe:<16} {first:10.4f} {last:10.4f} {over:+14.4f} {took:7.1f}", flush=True)
    plot(curves, options.plot)
    print(f"\n{options.plot}")


if __name__ == "__main__":
    main()
