# SPDX-License-Identifier: Apache-2.0
"""Trains TransformerEngine's flax modules for three steps; prints module, recipe and losses."""

import narrowfloat.te  # isort: skip  (first: it makes the next import work)
import sys

import jax
import jax.numpy as jnp
import optax
import transformer_engine.jax as te
from transformer_engine.common import recipe
from transformer_engine.jax import flax
from transformer_engine.jax.sharding import MeshResource

assert narrowfloat.te
MODULES = {
    "DenseGeneral": lambda: flax.DenseGeneral(features=128, use_bias=True),
    "LayerNormDenseGeneral": lambda: flax.LayerNormDenseGeneral(
        features=128, return_layernorm_output=False
    ),
    "LayerNormMLP": lambda: flax.LayerNormMLP(intermediate_dim=128, return_layernorm_output=False),
    "TransformerLayer": lambda: flax.TransformerLayer(
        hidden_size=128,
        mlp_hidden_size=128,
        num_attention_heads=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        intermediate_dropout=0.0,
        self_attn_mask_type="causal",
        layer_type=flax.TransformerLayerType.ENCODER,
        enable_relative_embedding=False,
    ),
}
KEY = jax.random.PRNGKey(0)
RANDOM = {"params": KEY, "dropout": KEY, "sr_rng": KEY}
X = jax.random.normal(KEY, (2, 64, 128), jnp.bfloat16)


def losses(module: object) -> list[float]:
    """Returns the losses of three steps."""

    def loss(params: dict, others: dict) -> jax.Array:
        y = module.apply({"params": params, **others}, X, rngs=RANDOM)
        y = y[0] if isinstance(y, tuple) else y
        return jnp.mean(jnp.square(y.astype(jnp.float32) - 1))

    others = dict(module.init(RANDOM, X))
    params = others.pop("params")
    optimizer = optax.sgd(0.1)
    state = optimizer.init(params)
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    done = []
    for _ in range(3):
        value, (gradients, scales) = step(params, others)
        updates, state = optimizer.update(gradients, state)
        params = optax.apply_updates(params, updates)
        others = te.update_collections(scales, others)
        done.append(float(value))
    return done


for chosen in sys.argv[1:]:
    name, module = chosen.split(":")
    quantized = getattr(recipe, name)() if name else None
    with te.autocast(enabled=bool(name), recipe=quantized, mesh_resource=MeshResource()):
        print(name, module, *losses(MODULES[module]()))
