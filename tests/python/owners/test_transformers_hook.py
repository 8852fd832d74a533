# SPDX-License-Identifier: Apache-2.0
"""Tests `import narrowfloat.transformers`: from_pretrained and save_pretrained of our folders."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli import run

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import narrowfloat.transformers
from narrowfloat.pytorch import DType, MXFP8Quantizer, QuantizedTensor
from narrowfloat.transformers import ExpertStack, _experts_of
from safetensors import safe_open
from tiny_models import VOCABULARY, loader, logits, write_tiny_model
from transformers import (
    CLIPVisionConfig,
    CTRLConfig,
    CTRLLMHeadModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
)

import narrowfloat as nf

KINDS = ["llama", "tied llama", "bert"]
SCHEMES = ["fp8_e4m3", "fp8_block128x128_e4m3", "mxfp8_e4m3", "nvfp4", "nvfp4_2d"]


def stored(folder: Path) -> tuple[dict[str, tuple], dict[str, str]]:
    """Returns type, shape and bytes of every tensor of a folder, and the folder's metadata."""
    tensors, metadata = {}, {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            metadata |= file.metadata()
            for name in file.keys():
                tensor = file.get_tensor(name)
                content = tensor.contiguous().reshape(-1).view(torch.uint8)
                tensors[name] = (tensor.dtype, tuple(tensor.shape), bytes(content.numpy()))
    return tensors, metadata


def quantized_names(folder: Path) -> list[str]:
    loaded = nf.load(folder)
    return [name for name in loaded if isinstance(loaded[name], nf.QuantizedTensor)]


def quantized_model(kind: str, scheme: str, tmp_path: Path, **options: object) -> Path:
    write_tiny_model(kind, tmp_path / "float", **options)
    run("quantize", tmp_path / "float", tmp_path / "ours", "--scheme", scheme)
    return tmp_path / "ours"


@pytest.mark.parametrize(("kind", "scheme"), [
    *((kind, "mxfp8_e4m3") for kind in KINDS), *(("llama", scheme) for scheme in SCHEMES),
])  # fmt: skip
def test_the_folder_loads_and_is_saved_with_the_same_bytes(
    kind: str, scheme: str, tmp_path: Path
) -> None:
    ours = quantized_model(kind, scheme, tmp_path)
    model = loader(kind).from_pretrained(ours)
    weights = [value for value in model.parameters() if isinstance(value, QuantizedTensor)]
    assert len(weights) == len(quantized_names(ours)) > 0
    run("dequantize", ours, tmp_path / "plain")
    assert torch.equal(logits(model), logits(loader(kind).from_pretrained(tmp_path / "plain")))
    model.save_pretrained(tmp_path / "again")
    assert stored(tmp_path / "again") == stored(ours)
    again = json.loads((tmp_path / "again" / "config.json").read_text())["quantization_config"]
    assert again == {"quant_method": "narrowfloat", "spec": scheme}


def test_the_bias_of_a_head_that_is_tied_to_a_quantized_weight_stays(tmp_path: Path) -> None:
    config = CTRLConfig(vocab_size=VOCABULARY, n_embd=128, dff=256, n_layer=1, n_head=4)
    model = CTRLLMHeadModel(config)
    torch.nn.init.normal_(model.lm_head.bias)
    model.save_pretrained(tmp_path / "float")
    # An embedding is quantized only on request.
    selected = "--scheme", "mxfp8_e4m3", "--include", "transformer.w.weight"
    run("quantize", tmp_path / "float", tmp_path / "ours", *selected)
    run("dequantize", tmp_path / "ours", tmp_path / "plain")
    loaded = CTRLLMHeadModel.from_pretrained(tmp_path / "ours")
    assert isinstance(loaded.lm_head.weight, QuantizedTensor)
    assert torch.equal(loaded.lm_head.bias, model.lm_head.bias)
    expected = logits(CTRLLMHeadModel.from_pretrained(tmp_path / "plain"))
    assert torch.equal(logits(loaded), expected)
    loaded.save_pretrained(tmp_path / "again")
    assert stored(tmp_path / "again") == stored(tmp_path / "ours")


TEXT = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
VISION = CLIPVisionConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=1,
                          num_attention_heads=4, image_size=28, patch_size=14)  # fmt: skip
# Models whose weights have other names in files.
RENAMED = [
    (MixtralForCausalLM, MixtralConfig(**TEXT, num_local_experts=2)),
    (LlavaForConditionalGeneration,
     LlavaConfig(vision_config=VISION, text_config=LlamaConfig(**TEXT))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "config"), RENAMED, ids=["mixtral", "llava"])
def test_weights_are_saved_under_the_names_of_the_file(
    kind: type[PreTrainedModel], config: object, tmp_path: Path
) -> None:
    kind(config).save_pretrained(tmp_path / "float")
    run("quantize", tmp_path / "float", tmp_path / "ours", "--scheme", "fp8_e4m3")
    model = kind.from_pretrained(tmp_path / "ours")
    assert not set(quantized_names(tmp_path / "ours")) <= set(model.state_dict())
    model.save_pretrained(tmp_path / "again")
    assert stored(tmp_path / "again") == stored(tmp_path / "ours")
    again = kind.from_pretrained(tmp_path / "again")
    assert torch.equal(logits(again), logits(model))


def test_shards_are_read(tmp_path: Path) -> None:
    ours = quantized_model("llama", "mxfp8_e4m3", tmp_path, max_shard_size="300KB")
    assert len(list(ours.glob("*.safetensors"))) > 2
    model = loader("llama").from_pretrained(ours)
    run("dequantize", ours, tmp_path / "plain")
    expected = logits(loader("llama").from_pretrained(tmp_path / "plain"))
    assert torch.equal(logits(model), expected)
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(loader("llama").from_pretrained(tmp_path / "again")), expected)


@pytest.mark.parametrize("scheme", ["mxfp8_e4m3", "nvfp4"])
def test_a_model_is_saved_in_several_files(scheme: str, tmp_path: Path) -> None:
    ours = quantized_model("llama", scheme, tmp_path)
    model = loader("llama").from_pretrained(ours)
    model.save_pretrained(tmp_path / "again", max_shard_size="100KB")
    assert len(list((tmp_path / "again").glob("*.safetensors"))) > 2
    assert stored(tmp_path / "again") == stored(ours)
    before, after = nf.load(ours), nf.load(tmp_path / "again")
    assert set(after) == set(before)
    for name in quantized_names(ours):
        for role, buffer in before[name].buffers.items():
            assert after[name].buffers[role].tobytes() == buffer.tobytes()
    again = loader("llama").from_pretrained(tmp_path / "again")
    assert torch.equal(logits(again), logits(model))
    assert "0 findings" in run("check", tmp_path / "again").stdout


def test_dtype_is_the_nominal_type_and_leaves_the_codes(tmp_path: Path) -> None:
    ours = quantized_model("llama", "mxfp8_e4m3", tmp_path)
    model = loader("llama").from_pretrained(ours, dtype=torch.bfloat16, device_map=None)
    weight = model.model.layers[0].self_attn.q_proj.weight
    assert isinstance(weight, QuantizedTensor) and weight.dtype == torch.bfloat16
    assert model.model.embed_tokens.weight.dtype == torch.bfloat16
    model.save_pretrained(tmp_path / "again")
    before, after = stored(ours), stored(tmp_path / "again")
    assert after[1] == before[1], "the recorded type is the file's"
    buffers = {name for name in before[0] if name.endswith(("data", "scale_inv"))}
    assert buffers and all(after[0][name] == before[0][name] for name in buffers)


def test_missing_weights_are_reported_as_transformers_does(tmp_path: Path) -> None:
    ours = quantized_model("llama", "mxfp8_e4m3", tmp_path)
    (path,) = ours.glob("*.safetensors")
    tensors = dict(nf.load(path))
    del tensors["model.norm.weight"], tensors["model.layers.0.mlp.up_proj.weight"]
    nf.save(path, tensors)
    _, report = loader("llama").from_pretrained(ours, output_loading_info=True)
    assert sorted(report["missing_keys"]) == [
        "model.layers.0.mlp.up_proj.weight", "model.norm.weight",
    ]  # fmt: skip
    assert not report["unexpected_keys"]


def test_dequantize_makes_a_float_model(tmp_path: Path) -> None:
    ours = quantized_model("llama", "nvfp4", tmp_path)
    model = loader("llama").from_pretrained(ours)
    expected = logits(model)
    assert torch.equal(logits(model.dequantize()), expected)
    assert not any(isinstance(value, QuantizedTensor) for value in model.parameters())


def test_what_is_not_held_is_refused(tmp_path: Path) -> None:
    ours = quantized_model("llama", "mxfp8_e4m3", tmp_path)
    model = loader("llama").from_pretrained(ours)
    projection = model.model.layers[0].self_attn.q_proj
    projection.weight = torch.nn.Parameter(projection.weight.dequantize())
    with pytest.raises(NotImplementedError) as raised:
        model.save_pretrained(tmp_path / "no")
    assert str(raised.value) == (
        "save_pretrained: 'model.layers.0.self_attn.q_proj.weight' must be the quantized weight "
        "that was loaded, got Tensor"
    )
    model = loader("llama").from_pretrained(ours)
    norm = model.model.norm
    quantizer = MXFP8Quantizer(DType.kFloat8E4M3)
    norm.weight = torch.nn.Parameter(quantizer(torch.ones(32, 32)).detach())
    with pytest.raises(NotImplementedError) as raised:
        model.save_pretrained(tmp_path / "no")
    assert str(raised.value) == (
        "save_pretrained: 'model.norm.weight' must be quantized by the file that was loaded, got "
        "a MXFP8Tensor of the program"
    )
    assert not (tmp_path / "no").exists() or not list((tmp_path / "no").glob("*.safetensors"))
    with pytest.raises(
        NotImplementedError, match=r"^from_pretrained: device_map must be None or the CPU, got .*$"
    ):
        loader("llama").from_pretrained(ours, device_map={"": "cuda:0"})
    config = narrowfloat.transformers.NarrowfloatConfig("mxfp8_e4m3")
    with pytest.raises(ValueError, match="require the model to be pre-quantized"):
        loader("llama").from_pretrained(tmp_path / "float", quantization_config=config)


@pytest.mark.parametrize(("scheme", "error", "reason"), [
    ("mxfp8_e4m3", ValueError,
     "MXFP8Quantizer needs rows and columns in multiples of 32, got shape 64x72"),
    ("nvfp4", ValueError,
     "NVFP4Quantizer needs rows and columns in multiples of 16, got shape 64x72"),
    ("mxfp4", NotImplementedError, "no tensor class of narrowfloat.pytorch holds 'mxfp4'"),
])  # fmt: skip
def test_weights_that_no_class_takes_are_named(
    scheme: str, error: type[Exception], reason: str, tmp_path: Path
) -> None:
    config = LlamaConfig(**(TEXT | {"intermediate_size": 72}))
    loader("llama").from_config(config).save_pretrained(tmp_path / "float")
    name = "model.layers.0.mlp.down_proj.weight"
    only = ["--include", name, "--exclude", f"re:(?!{re.escape(name)}).*"]
    run("quantize", tmp_path / "float", tmp_path / "ours", "--scheme", scheme, *only)
    with pytest.raises(error) as raised:
        loader("llama").from_pretrained(tmp_path / "ours")
    assert str(raised.value) == (
        f"from_pretrained: '{name}' must fit a class of narrowfloat.pytorch, but {reason}; "
        "`narrowfloat quantize --exclude` leaves it plain, `narrowfloat dequantize` makes a float "
        "model"
    )


MOE = ["qwen3-moe", "deepseek-v3"]


def stacks(model: torch.nn.Module) -> dict[str, ExpertStack]:
    return {name: p for name, p in model.named_parameters() if isinstance(p, ExpertStack)}


@pytest.mark.parametrize(("kind", "scheme"), [
    *((kind, scheme) for kind in MOE for scheme in ("mxfp8_e4m3", "nvfp4")),
    *(("qwen3-moe", scheme) for scheme in ("fp8_e4m3", "fp8_block128x128_e4m3")),
])  # fmt: skip
def test_experts_stay_quantized_one_by_one(kind: str, scheme: str, tmp_path: Path) -> None:
    ours = quantized_model(kind, scheme, tmp_path)
    experts = [name for name in quantized_names(ours) if re.search(r"experts\.\d", name)]
    run("dequantize", ours, tmp_path / "plain")
    for options in ({}, {"experts_implementation": "eager"}):
        model = loader(kind).from_pretrained(ours, **options)
        found = stacks(model)
        assert sum(len(stack._parts) * len(stack._parts[0]) for stack in found.values()) == len(
            experts
        )
        plain = loader(kind).from_pretrained(tmp_path / "plain", **options)
        values = dict(plain.named_parameters())
        for name, stack in found.items():
            assert torch.equal(stack.dequantize(), values[name])
            assert torch.equal(stack[1], values[name][1])
        assert torch.equal(logits(model), logits(plain))
    if scheme == "nvfp4":  # an amax for each expert and projection
        (stack, *_) = found.values()
        amaxes = {part._amax_rowwise.item() for expert in stack._parts for part in expert}
        assert len(amaxes) == len(stack._parts) * len(stack._parts[0])
    model.save_pretrained(tmp_path / "again")
    assert stored(tmp_path / "again") == stored(ours)
    again = loader(kind).from_pretrained(tmp_path / "again", **options)
    assert torch.equal(logits(again), logits(model))


def test_stacks_of_experts_go_where_parameters_go(tmp_path: Path) -> None:
    ours = quantized_model("qwen3-moe", "mxfp8_e4m3", tmp_path)
    model = loader("qwen3-moe").from_pretrained(ours, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "again")
    assert stored(tmp_path / "again")[1] == stored(ours)[1]
    (stack, *_) = stacks(model).values()
    assert stack.dtype == torch.bfloat16 and stack[0].dtype == torch.bfloat16
    assert repr(stack.detach()) == f"ExpertStack(shape={tuple(stack.shape)}, of=MXFP8Tensor)"
    wide = torch.nn.Parameter(stack, requires_grad=False).to(torch.float32)
    assert isinstance(wide, ExpertStack) and torch.equal(wide[0], stack.dequantize(wide.dtype)[0])
    assert torch.equal((stack * 2)[0], stack[0] * 2)
    for write in (
        lambda: stack.mul_(2),
        lambda: torch.mul(stack[0], 2, out=stack),
        lambda: torch._foreach_add_([stack], 1),
    ):
        with pytest.raises(
            RuntimeError,
            match="^.*: an ExpertStack is read-only; write to the values that its "
            r"dequantize\(\) returns$",
        ):
            write()
    for write in (lambda: stack[0].zero_(), lambda: stack[0, 1:].add_(1), lambda: stack.mT.neg_()):
        with pytest.raises(RuntimeError, match="values that an ExpertStack gives are read-only"):
            write()
    stack.dequantize().zero_()
    expected = logits(model)
    assert torch.equal(logits(model.dequantize()), expected)
    assert not stacks(model)


def test_models_with_stacks_of_experts_are_copied(tmp_path: Path) -> None:
    ours = quantized_model("qwen3-moe", "mxfp8_e4m3", tmp_path)
    model = loader("qwen3-moe").from_pretrained(ours)
    copied = copy.deepcopy(model)
    assert torch.equal(logits(copied), logits(model))
    for name, stack in stacks(model).items():
        other = copied.get_parameter(name)
        assert isinstance(other, ExpertStack) and not other.holds(stack)
        assert torch.equal(other.dequantize(), stack.dequantize())
        data = [part._parts[0][0]._rowwise_data.data_ptr() for part in (stack, other)]
        assert data[0] != data[1]
    copied.save_pretrained(tmp_path / "again")
    assert stored(tmp_path / "again") == stored(ours)
    assert isinstance(copy.deepcopy(model.state_dict())[name], ExpertStack)
    with torch.no_grad():
        copied.model.layers[0].self_attn.q_proj.weight.zero_()
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(NotImplementedError, match=f"'{name}' must be the quantized weight that"):
        copied.save_pretrained(tmp_path / "no")


def test_experts_of_which_some_are_plain_are_refused(tmp_path: Path) -> None:
    write_tiny_model("qwen3-moe", tmp_path / "float")
    run("quantize", tmp_path / "float", tmp_path / "ours", "--scheme", "mxfp8_e4m3",
        "--exclude", "*.experts.2.up_proj.weight")  # fmt: skip
    with pytest.raises(ValueError, match="needs all of its experts quantized, in one shape, got 4"):
        loader("qwen3-moe").from_pretrained(tmp_path / "ours")


def test_parameters_that_transformers_splits_are_refused() -> None:
    merge = SimpleNamespace(operations=["Chunk"], source_patterns=["qkv"])
    with pytest.raises(NotImplementedError) as raised:
        _experts_of("w", {}, merge)
    assert str(raised.value) == (
        "from_pretrained: 'w' must be a tensor of the file or a stack of its experts, but "
        "transformers makes it of ['qkv'] by ['Chunk']; `narrowfloat dequantize` makes a float "
        "model"
    )


def test_weights_have_the_shapes_of_the_model(tmp_path: Path) -> None:
    ours = quantized_model("llama", "mxfp8_e4m3", tmp_path)
    config = json.loads((ours / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    config["intermediate_size"] = 2 * inner
    (ours / "config.json").write_text(json.dumps(config))
    name, wider = "model.layers.0.mlp.down_proj.weight", (hidden, 2 * inner)
    with pytest.raises(ValueError) as raised:
        loader("llama").from_pretrained(ours)
    assert str(raised.value) == (
        f"from_pretrained: '{name}' must have shape {wider}, got {(hidden, inner)}"
    )
