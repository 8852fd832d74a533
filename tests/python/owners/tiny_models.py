# SPDX-License-Identifier: Apache-2.0
"""Writes small models with random weights by transformers, and computes their logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    DeepseekV3Config,
    GptOssConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3MoeConfig,
)

VOCABULARY = 96
_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
}
_HEADS = {"num_key_value_heads": 2, "head_dim": 32}

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_SIZES, **_HEADS),
    "tied llama": LlamaConfig(**_SIZES, **_HEADS, tie_word_embeddings=True),
    "bert": BertConfig(**_SIZES),
    "qwen3-moe": Qwen3MoeConfig(
        **_SIZES, **_HEADS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128
    ),
    "gpt-oss": GptOssConfig(
        **(_SIZES | {"intermediate_size": 128}), **_HEADS, num_local_experts=4,
        num_experts_per_tok=2, layer_types=["sliding_attention", "full_attention"],
    ),
    "deepseek-v3": DeepseekV3Config(
        **_SIZES, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=2,
        topk_group=1, moe_intermediate_size=128, q_lora_rank=128, kv_lora_rank=96,
        qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=32, first_k_dense_replace=1,
    ),
}  # fmt: skip


def loader(kind: str) -> Any:
    """Returns the class whose from_pretrained() loads that model."""
    return AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM


def write_tiny_model(kind: str, folder: Path, **options: object) -> Path:
    torch.manual_seed(len(kind))
    model = loader(kind).from_config(CONFIGS[kind])
    model.save_pretrained(folder, **options)
    return folder


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    tokens = torch.arange(24).reshape(2, 12) * 7 % VOCABULARY
    return model(input_ids=tokens).logits
