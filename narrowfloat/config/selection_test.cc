// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/config/selection.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat::config {
namespace {

using Action = SelectionRule::Action;

const Shape kMatrix{64, 32};

bool IsLinearWeight(std::string_view name, const Shape& shape) {
  return DecideByDefault(name, shape, {}).selected;
}

TEST(SelectionTest, TakesLinearWeights) {
  for (const char* name : {
           "weight",
           "encoder.layer.0.attention.self.query.weight",
           "encoder.layer.5.attention.output.dense.weight",
           "pooler.dense.weight",
           "model.layers.3.mlp.gate_proj.weight",        // not the router `mlp.gate`
           "model.layers.3.mlp.gate_up_proj.weight",     //
           "model.layers.3.mlp.experts.7.w1.weight",     //
           "model.layers.3.mlp.experts.gate_up_proj",    // stacked, without `.weight`
           "model.layers.3.mlp.experts.down_proj",       //
           "transformer.h.0.attn.c_attn.weight",         //
           "decoder.layers.0.self_attn.in_proj_weight",  //
           "model.layers.0.self_attn.indexer.weight",    //
           "model.normal_proj.weight",                   // `norm` is only a part of a word
           "model.embedder_proj.weight",                 //
           "decoder.token_proj.weight",                  //
           "single_to_token.weight",                     // a projection of ESMFold
           "model.vision_embed_tokens.weight",           // of Fuyu
           "x_embedder.weight",                          // of diffusers
           "time_emb.linear_1.weight",                   //
           "roberta_prelayernorm.encoder.layer.0.output.dense.weight",
       }) {
    EXPECT_TRUE(IsLinearWeight(name, kMatrix)) << name;
  }
}

TEST(SelectionTest, LeavesOtherTensorsAlone) {
  for (const char* name : {
           "",
           "lm_head.weight",
           "embeddings.word_embeddings.weight",
           "embeddings.position_embeddings.weight",
           "model.embed_tokens.weight",
           "model.llm.embed.weight",
           "decoder.position_embeds_layer.weight",
           "decoder.reference_points.weight",
           "transformer.wte.weight",
           "transformer.wpe.weight",
           "shared.weight",
           "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
           "embeddings.LayerNorm.weight",
           "model.norm.weight",
           "model.layers.0.input_layernorm.weight",
           "model.layers.0.self_attn.q_norm.weight",
           "transformer.h.0.ln_1.weight",
           "model.layers.3.mlp.gate.weight",
           "model.layers.3.block_sparse_moe.gate.weight",
           "model.layers.3.mlp.router.weight",
           "model.layers.3.mlp.shared_expert_gate.weight",
           "model.layers.0.self_attn.q_proj.bias",
           "model.layers.0.self_attn.q_proj.weight_scale_inv",
           "vision.conv1.weight",
           "output.weight",                               // Meta's Llama
           "head.weight",                                 //
           "classifier.weight",                           //
           "score.weight",                                //
           "cls.predictions.decoder.weight",              //
           "proj_out.weight",                             // Whisper
           "model.layers.61.shared_head.head.weight",     // DeepSeek, multi-token prediction
           "model.layers.61.eh_proj.weight",              //
           "mtp.fc.weight",                               //
           "base.layers.0.q_proj.lora_A.default.weight",  //
           "model.layers.3.mlp.gate_up_proj",  // neither `.weight` nor a stack of experts
           "rotary_emb.inv_freq",
       }) {
    EXPECT_FALSE(IsLinearWeight(name, kMatrix)) << name;
  }
}

TEST(SelectionTest, LeavesVectorsAndScalarsAlone) {
  EXPECT_FALSE(IsLinearWeight("dense.weight", {64}));
  EXPECT_FALSE(IsLinearWeight("dense.weight", {}));
}

TEST(SelectionTest, TensorsOfHigherRankAreConvolutionsUnlessTheyAreExperts) {
  EXPECT_FALSE(IsLinearWeight("dense.weight", {2, 3, 4}));
  EXPECT_FALSE(IsLinearWeight("features.0.weight", {64, 3, 3, 3}));
  EXPECT_TRUE(IsLinearWeight("mlp.experts.gate_up_proj", {4, 64, 32}));
  EXPECT_TRUE(IsLinearWeight("mlp.experts.w1.weight", {4, 64, 32}));
}

struct ListedTensor {
  std::string model_type, name, shape, owner;

  Shape Dimensions() const {
    Shape dimensions;
    std::stringstream text(shape);
    for (std::string item; std::getline(text, item, 'x');) dimensions.push_back(std::stoll(item));
    return dimensions;
  }
};

/// Returns all tensors of small models with two or more dimensions, and the class of their module.
std::vector<ListedTensor> ListedTensors() {
  std::ifstream file(NF_TENSOR_NAMES);
  std::vector<ListedTensor> tensors;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    ListedTensor tensor;
    std::stringstream(line) >> tensor.model_type >> tensor.name >> tensor.shape >> tensor.owner;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

TEST(SelectionTest, TakesLinearLayersAndExpertsOfRealArchitectures) {
  const std::set<std::string> transposed_experts = {"gpt_oss", "llama4_text"};
  std::set<std::string> models;
  for (const ListedTensor& tensor : ListedTensors()) {
    models.insert(tensor.model_type);
    const bool experts = tensor.owner.ends_with("Experts") && !tensor.name.ends_with("_bias");
    const bool linear = tensor.owner == "Linear" && !tensor.name.ends_with("gate.weight");
    const bool transposed =
        tensor.owner == "Conv1D" || (experts && transposed_experts.contains(tensor.model_type));
    const Decision decision = DecideByDefault(tensor.name, tensor.Dimensions(),
                                              {.type = tensor.model_type, .hidden_size = 64});
    EXPECT_EQ(decision.selected, (experts || linear) && !transposed)
        << tensor.model_type << " " << tensor.name << " of " << tensor.owner << ": "
        << decision.reason;
    EXPECT_EQ(decision.left_by_layout, transposed) << tensor.name;
  }
  EXPECT_GE(models.size(), 10u);
}

TEST(SelectionTest, ReasonsNameTheRule) {
  const std::vector<SelectionRule> rules = {{Action::kExclude, "re:.*\\.(k|v)_proj\\..*"}};
  const auto reason = [&](const std::string& name, const Shape& shape) {
    return Decide(rules, name, DType::kBFloat16, shape, {.type = "gpt_oss"}).reason;
  };
  EXPECT_EQ(reason("a.k_proj.weight", kMatrix), "--exclude 're:.*\\.(k|v)_proj\\..*'");
  EXPECT_EQ(reason("a.q_proj.weight", kMatrix), "linear layer");
  EXPECT_EQ(reason("lm_head.weight", kMatrix), "output head");
  EXPECT_EQ(reason("mlp.experts.down_proj", {2, 64, 32}), "stored as [inputs, outputs] by gpt_oss");
  EXPECT_TRUE(DecideByDefault("mlp.experts.down_proj", {2, 64, 32}, {.type = "gpt_oss"},
                              {.transposed = true})
                  .selected);
  EXPECT_THROW(SelectionRule(Action::kInclude, "re:("), InvalidArgument);
}

TEST(SelectionTest, LeavesParametersThatTheHolderDoesNotNameAlone) {
  const Holder holder{.any_parameter = false};
  for (const char* name : {"attn.in_proj_weight", "weight"}) {
    EXPECT_TRUE(DecideByDefault(name, kMatrix, {}).selected) << name;
    const Decision decision = DecideByDefault(name, kMatrix, {}, holder);
    EXPECT_FALSE(decision.selected) << name;
    EXPECT_TRUE(decision.left_by_layout) << name;
    EXPECT_EQ(decision.reason, "not named '*.weight', as this convention needs it");
  }
  EXPECT_TRUE(DecideByDefault("attn.q_proj.weight", kMatrix, {}, holder).selected);
  EXPECT_TRUE(DecideByDefault("mlp.experts.down_proj", {2, 64, 32}, {}, holder).selected);
}

TEST(SelectionTest, LeavesFlaxsKernelsAlone) {
  for (const char* name : {"params.Dense_0.kernel", "encoder.dense.kernel"}) {
    const Decision decision = DecideByDefault(name, kMatrix, {});
    EXPECT_FALSE(decision.selected) << name;
    EXPECT_TRUE(decision.left_by_layout) << name;
    EXPECT_EQ(decision.reason, "stored as [inputs, outputs] by Flax");
  }
  EXPECT_FALSE(DecideByDefault("params.conv.kernel", kMatrix, {}).left_by_layout);
}

TEST(SelectionTest, FindsTheOrientationOfExpertsByTheModel) {
  const std::string up = "mlp.experts.gate_up_proj", down = "mlp.experts.down_proj";
  const auto reason = [](const std::string& name, const Shape& shape, const Model& model) {
    return DecideByDefault(name, shape, model).reason;
  };
  const std::string other = "stored as [inputs, outputs] by ", open = "perhaps " + other;
  const Model qwen{.type = "qwen3_vl_moe", .text_type = "qwen3_vl_moe_text", .hidden_size = 64};
  EXPECT_EQ(reason(up, {2, 64, 96}, qwen), other + "qwen3_vl_moe");
  EXPECT_EQ(reason(up, {2, 96, 64}, qwen), "stacked experts");
  EXPECT_EQ(reason(down, {2, 48, 64}, qwen), other + "qwen3_vl_moe");
  EXPECT_EQ(reason(down, {2, 64, 48}, qwen), "stacked experts");
  for (const std::string& name : {up, down}) {
    EXPECT_EQ(reason(name, {2, 64, 64}, qwen), open + "qwen3_vl_moe");
    EXPECT_EQ(reason(name, {2, 64, 96}, {.text_type = "qwen3_vl_moe_text"}),
              open + "qwen3_vl_moe_text");
    EXPECT_EQ(reason(name, {2, 64, 96}, {.type = "internvl", .text_type = "gpt_oss"}),
              other + "internvl");
  }
  EXPECT_EQ(reason("mlp.experts.0.up_proj.weight", kMatrix, qwen), "linear layer");
  const Model aria{.type = "aria", .text_type = "aria_moe_lm", .hidden_size = 64};
  EXPECT_EQ(reason("mlp.experts.fc1.weight", {2, 64, 96}, aria), other + "aria");
  EXPECT_EQ(reason("mlp.experts.fc2.weight", {2, 48, 64}, aria), other + "aria");
  EXPECT_EQ(reason("mlp.shared_experts.up_proj.weight", kMatrix, aria), "linear layer");
  EXPECT_TRUE(DecideByDefault(up, {2, 64, 64}, qwen, {.transposed = true}).selected);
}

TEST(SelectionTest, StackedExpertsAndEmbeddingsAreKnownByName) {
  EXPECT_TRUE(IsStackedExperts("model.layers.0.mlp.experts.gate_up_proj"));
  EXPECT_TRUE(IsStackedExperts("experts.down_proj"));
  for (const char* name : {"down_proj", "mlp.experts.gate_up_proj_bias", "mlp.experts.0.down_proj",
                           "mlp.experts.down_proj.weight", "experts"}) {
    EXPECT_FALSE(IsStackedExperts(name)) << name;
  }
  EXPECT_TRUE(IsExpert("layers.0.ffn.experts.3.w1.weight"));
  EXPECT_TRUE(IsExpert("experts.down_proj"));
  for (const char* name : {"experts", "ffn.shared_experts.w1.weight", "a.experts_proj.weight"}) {
    EXPECT_FALSE(IsExpert(name)) << name;
  }
  EXPECT_TRUE(IsEmbedding("model.embed_tokens.weight"));
  EXPECT_TRUE(IsEmbedding("transformer.wte.weight"));
  EXPECT_TRUE(IsEmbedding("transformer.w.weight", "ctrl"));
  EXPECT_FALSE(IsEmbedding("transformer.w.weight"));
  for (const char* name : {"lm_head.weight", "a.dense.weight", "model.embed_tokens.bias"}) {
    EXPECT_FALSE(IsEmbedding(name)) << name;
  }
}

TEST(SelectionTest, TheLastRuleThatMatchesDecides) {
  const std::string head = "lm_head.weight", dense = "a.dense.weight";
  const auto selected = [](const std::vector<SelectionRule>& rules, const std::string& name) {
    return Decide(rules, name, DType::kBFloat16, kMatrix, {}).selected;
  };
  EXPECT_FALSE(selected({}, head));
  EXPECT_TRUE(selected({}, dense));
  EXPECT_TRUE(selected({{Action::kInclude, "lm_head*"}}, head));
  EXPECT_FALSE(selected({{Action::kExclude, "*.dense.*"}}, dense));
  EXPECT_FALSE(selected({{Action::kInclude, "*"}, {Action::kExclude, "lm_head*"}}, head));
  EXPECT_TRUE(selected({{Action::kExclude, "*"}, {Action::kInclude, "lm_head*"}}, head));
  EXPECT_FALSE(selected({{Action::kExclude, "*"}, {Action::kInclude, "lm_head*"}}, dense));
  EXPECT_TRUE(selected({{Action::kExclude, "dense"}}, dense)) << "a glob matches the whole name";
}

TEST(SelectionTest, ARuleMayTakeAVectorButNeverAnotherType) {
  const std::vector<SelectionRule> all = {{Action::kInclude, "*"}};
  EXPECT_TRUE(Decide(all, "a.bias", DType::kFloat32, {64}, {}).selected);
  EXPECT_FALSE(Decide(all, "a.weight", std::nullopt, kMatrix, {}).selected);
}

}  // namespace
}  // namespace narrowfloat::config
