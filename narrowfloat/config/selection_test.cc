// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/config/selection.h"

#include <gtest/gtest.h>

namespace narrowfloat::config {
namespace {

using Action = SelectionRule::Action;

const Shape kMatrix{64, 32};

TEST(SelectionTest, TakesLinearWeights) {
  for (const char* name : {
           "weight", "encoder.layer.0.attention.self.query.weight",
           "encoder.layer.5.attention.output.dense.weight", "pooler.dense.weight",
           "model.layers.3.mlp.gate_proj.weight",        // not the router `mlp.gate`
           "model.layers.3.mlp.gate_up_proj.weight",     //
           "model.layers.3.mlp.experts.7.w1.weight",     //
           "model.layers.3.mlp.experts.gate_up_proj",    // stacked, without `.weight`
           "model.layers.3.mlp.experts.down_proj",       //
           "transformer.h.0.attn.c_attn.weight",         //
           "decoder.layers.0.self_attn.in_proj_weight",  //
           "model.layers.0.self_attn.indexer.weight",    //
           "model.normal_proj.weight",                   // `norm` is a part of a word here
           "model.embedder_proj.weight",                 //
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
           "model.layers.3.mlp.gate_up_proj",  // no expert's, so not known to be a weight
           "rotary_emb.inv_freq",
       }) {
    EXPECT_FALSE(IsLinearWeight(name, kMatrix)) << name;
  }
}

TEST(SelectionTest, LeavesVectorsAndScalarsAlone) {
  EXPECT_FALSE(IsLinearWeight("dense.weight", {64}));
  EXPECT_FALSE(IsLinearWeight("dense.weight", {}));
  EXPECT_TRUE(IsLinearWeight("dense.weight", {2, 3, 4}));
}

TEST(SelectionTest, TheLastRuleThatMatchesDecides) {
  const std::string head = "lm_head.weight", dense = "a.dense.weight";
  const auto selected = [](const std::vector<SelectionRule>& rules, const std::string& name) {
    return IsSelected(rules, name, DType::kBFloat16, kMatrix);
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
  EXPECT_TRUE(IsSelected(all, "a.bias", DType::kFloat32, {64}));
  EXPECT_FALSE(IsSelected(all, "a.weight", std::nullopt, kMatrix));
}

}  // namespace
}  // namespace narrowfloat::config
