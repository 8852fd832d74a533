# SPDX-License-Identifier: Apache-2.0
"""convert_model: a model's torch.nn.Linear layers become narrowfloat's."""

from __future__ import annotations

from collections.abc import Callable

import torch

from narrowfloat.pytorch.module.linear import Linear
from narrowfloat.pytorch.quantization import FP8GlobalStateManager

Filter = Callable[[str, torch.nn.Module], bool]


def convert_model(model: torch.nn.Module, filter: Filter | None = None) -> torch.nn.Module:
    """Replaces torch.nn.Linear layers in place by Linear, and returns the model.

    filter: gets a layer's full name and the layer, and returns whether to replace it; None replaces
    all. Parameters, hooks, training flag and every other attribute are those of the old layer, so
    that an optimizer that has the parameters stays valid. A layer that stands in several places
    stays one layer. Left alone, because what they do is not known: subclasses of torch.nn.Linear,
    and layers whose forward was replaced. If the model is a torch.nn.Linear, the new layer is
    returned. torch.nn.TransformerEncoderLayer loses its fused inference path, which reads weights
    past the layers.
    Errors: RuntimeError inside quantized_model_init, whose quantized weights would not be shared.
    """
    if FP8GlobalStateManager.with_fp8_parameters():
        raise RuntimeError(
            "convert_model: weights are shared with the old layers, so it must be called outside "
            "quantized_model_init"
        )
    made: dict[torch.nn.Module, Linear] = {}
    for name, module in list(model.named_modules()):
        if type(module) is not torch.nn.Linear or "forward" in vars(module):
            continue
        if filter is None or filter(name, module):
            made[module] = _converted(name, module)
    for parent in list(model.modules()):
        found = {key: made[child] for key, child in parent._modules.items() if child in made}
        parent._modules.update(found)
        if found and isinstance(parent, torch.nn.TransformerEncoderLayer):
            parent.activation_relu_or_gelu = 0
    return made.get(model, model)


def _converted(name: str, module: torch.nn.Linear) -> Linear:
    layer = Linear.__new__(Linear)
    # The same dictionaries of parameters and hooks, so that handles of hooks stay valid.
    layer.__dict__.update(module.__dict__)
    layer._begin(name or None)
    return layer
