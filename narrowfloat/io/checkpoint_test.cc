// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/checkpoint.h"

#include <gtest/gtest.h>

#include "narrowfloat/io/detect_convention.h"
#include "narrowfloat/io/testing.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat::io {
namespace {

using Entries = std::vector<TensorEntry>;

void WriteFile(const std::filesystem::path& path, const Entries& tensors, Metadata metadata = {}) {
  SafetensorsWriter writer(path, tensors, std::move(metadata));
  for (const TensorEntry& entry : writer.header().tensors) {
    writer.Append(entry.name, std::vector<std::byte>(entry.Bytes(), std::byte{7}));
  }
  writer.Finish();
}

void WriteIndex(const std::filesystem::path& path,
                const std::map<std::string, std::string>& weight_map) {
  ShardIndex index;
  for (const auto& [tensor, file] : weight_map) index.tensors[file].push_back(tensor);
  WriteText(path, PrintIndex("i", index));
}

std::string Refusal(const std::filesystem::path& path) {
  return MessageOf<InvalidArgument>([&] { Checkpoint::Open(path); });
}

TEST(CheckpointTest, AnUnfinishedFolderIsOpenedOnRequestAlone) {
  const TemporaryFolder folder;
  WriteFile(folder / "m.safetensors", {{"a", FileDType::kU8, {2}}});
  EXPECT_EQ(FindUnfinishedMark(folder.path()), std::nullopt);
  WriteText(UnfinishedMark(folder.path()), "");
  EXPECT_EQ(FindUnfinishedMark(folder.path()), UnfinishedMark(folder.path()));
  EXPECT_EQ(Refusal(folder.path()),
            "read: " + folder.path().string() +
                ", the job that writes this folder must be finished, got its mark " +
                UnfinishedMark(folder.path()).string() +
                "; run the job again, or remove the mark to read what the folder holds");
  EXPECT_EQ(Checkpoint::Open(folder.path(), Unfinished::kOpen).tensors().size(), 1u);
  EXPECT_EQ(Checkpoint::Open(folder / "m.safetensors").tensors().size(), 1u) << "a whole file";
}

TEST(CheckpointTest, OpensAFileAnIndexOrAFolder) {
  const TemporaryFolder folder;
  WriteFile(folder / "m-1.safetensors", {{"b", FileDType::kU8, {2}}});
  WriteFile(folder / "m-2.safetensors", {{"a", FileDType::kU8, {3}}});
  WriteIndex(folder / "m.safetensors.index.json",
             {{"a", "m-2.safetensors"}, {"b", "m-1.safetensors"}});

  const Checkpoint file = Checkpoint::Open(folder / "m-1.safetensors");
  EXPECT_EQ(file.folder(), std::nullopt);
  EXPECT_EQ(file.tensors().size(), 1u);

  for (const auto& path : {folder.path(), folder / "m.safetensors.index.json"}) {
    const Checkpoint model = Checkpoint::Open(path);
    EXPECT_EQ(model.folder(), folder.path());
    ASSERT_EQ(model.tensors().size(), 2u);
    EXPECT_EQ(model.tensors()[0].tensor->name, "a");
    EXPECT_EQ(model.tensors()[0].shard->name, "m-2.safetensors");
    EXPECT_EQ(model.Find("b").shard->name, "m-1.safetensors");
    EXPECT_EQ(model.Find("c").tensor, nullptr);
    std::vector<std::byte> out(3);
    ReadBuffer(model.Find("a"), 0, out);
    EXPECT_EQ(out, std::vector<std::byte>(3, std::byte{7}));
    EXPECT_EQ(MessageOf<InvalidArgument>([&] { ReadBuffer(model.Find("b"), 0, out); }),
              "read: the buffer for 'b' must have 2 bytes, got 3");
  }
}

TEST(CheckpointTest, AFolderIsOneModel) {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  EXPECT_EQ(Refusal(path), "read: " + path +
                               ", a folder must have one *.safetensors file or one index, got 0 "
                               "and 0; name the file to read");
  WriteFile(folder / "m.safetensors", {{"a", FileDType::kU8, {3}}});
  EXPECT_EQ(Checkpoint::Open(path).folder(), folder.path());
  WriteFile(folder / "n.safetensors", {{"b", FileDType::kU8, {3}}});
  EXPECT_EQ(Refusal(path), "read: " + path +
                               ", a folder must have one *.safetensors file or one index, got 2 "
                               "and 0; name the file to read");
  EXPECT_EQ(Refusal(folder / "no"), "read: " + (folder / "no").string() + ", does not exist");
}

TEST(CheckpointTest, TheIndexTellsTheTruth) {
  const TemporaryFolder folder;
  const auto index = folder / "model.safetensors.index.json";
  WriteFile(folder / "1.safetensors", {{"a", FileDType::kU8, {3}}});
  WriteIndex(index, {{"a", "1.safetensors"}, {"b", "1.safetensors"}});
  EXPECT_EQ(Refusal(folder.path()),
            "index: " + index.string() + ": 'b' must be in 1.safetensors, which lacks it");
  WriteIndex(index, {{"a", "2.safetensors"}});
  EXPECT_EQ(Refusal(folder.path()),
            "read: " + (folder / "2.safetensors").string() + ", does not exist");
  WriteFile(folder / "2.safetensors", {{"a", FileDType::kU8, {3}}, {"b", FileDType::kU8, {3}}});
  WriteIndex(index, {{"a", "1.safetensors"}, {"b", "2.safetensors"}});
  EXPECT_EQ(Refusal(folder.path()),
            "read: " + folder.path().string() +
                ", 'a' must be in one file, it is in both 1.safetensors and 2.safetensors");
}

std::string Guess(const Entries& tensors, Metadata metadata = {}, const char* config = nullptr) {
  const TemporaryFolder folder;
  WriteFile(folder / "m.safetensors", tensors, std::move(metadata));
  if (config != nullptr) WriteText(folder / "config.json", config);
  return DetectConvention(Checkpoint::Open(folder.path())).name;
}

TEST(DetectConventionTest, FollowsNamesAndTypes) {
  using enum FileDType;
  EXPECT_EQ(Guess({{"m.weight", kF32, {2, 4}}}), "plain");
  EXPECT_EQ(Guess({{"m.weight_packed", kU8, {2, 4}}}), "compressed-tensors");
  EXPECT_EQ(Guess({{"m_blocks", kU8, {2, 4}}, {"m_scales", kU8, {2}}}), "mxfp4");
  EXPECT_EQ(Guess({{"m_blocks", kU8, {2, 4}}, {"m_scales", kF32, {2}}}), "unknown");
  EXPECT_EQ(Guess({{"m.weight", kU8, {2, 4}},
                   {"m.weight_scale", kF8E4M3, {2}},
                   {"m.weight_scale_2", kF32, {}}}),
            "modelopt");
  EXPECT_EQ(Guess({{"m.weight", kU8, {2, 4}}, {"m.weight_scale", kU8, {2}}}), "quark");
  for (const char* scale : {"m.weight_scale_inv", "m.scale", "m.qscale_weight"}) {
    EXPECT_EQ(Guess({{"m.weight", kF8E4M3, {2, 4}}, {scale, kF32, {1, 1}}}), "fp8") << scale;
  }
  EXPECT_EQ(Guess({{"m.weight", kF8E4M3, {2, 4}}, {"m.weight_scale", kF32, {2, 1}}}),
            "compressed-tensors");
  EXPECT_EQ(Guess({{"m.weight", kF8E4M3, {2, 4}}}), "unscaled-fp8");
  EXPECT_EQ(Guess({{"m.norm.scale", kF8E5M2, {4}}, {"m.weight", kF8E5M2, {2, 4}}}), "unscaled-fp8");
  EXPECT_EQ(Guess({{"m.weight", kF8E4M3, {2, 4}}, {"m.bias", kF32, {2}}}), "unscaled-fp8");
  EXPECT_EQ(Guess({{"m.weight", kF8E4M3, {2, 4}}, {"m.multiplier", kF32, {}}}), "unknown");
  EXPECT_EQ(Guess({{"m.weight", kF8E4M3, {2, 4}}, {"m_scale", kF32, {}}}), "unknown");
  EXPECT_EQ(Guess({{"m.weight", kF8E4M3, {2, 4}}, {"n.weight", kF4, {2, 4}}}), "unknown");
  EXPECT_EQ(Guess({{"m.weight", kF8E4M3, {2, 4}}, {"m.scale_weight", kF32, {}}}), "comfyui");
  EXPECT_EQ(Guess({{"scaled_fp8", kF8E4M3, {0}}}), "comfyui");
  EXPECT_EQ(Guess({{"m._weight_qdata", kF8E4M3, {2, 4}}}, {{"tensor_names", "[]"}}), "torchao");
}

TEST(DetectConventionTest, FindsIntegerCodesByTheirScales) {
  using enum FileDType;
  struct Names {
    const char* codes;
    FileDType type;
    const char* scale;
  };
  for (const auto& [codes, type, scale] : {Names{"m.weight", kI8, "m.weight_scale"},
                                           {"m.weight", kI8, "m.SCB"},
                                           {"m.weight", kU8, "m.weight.absmax"},
                                           {"m.weight", kU32, "m.scales"},
                                           {"m.qweight", kI32, "m.scales"},
                                           {"m.qweight", kI32, "m.qzeros"},
                                           {"m.w1_weight.blocks", kU8, "m.w1_weight.scales"},
                                           {"m.codes", kI16, "m.scales"},
                                           {"m.weight._data", kI8, "m.weight._scale"},
                                           {"m.W_q", kU8, "m.scale"},
                                           {"m.experts.up_proj", kU8, "m.experts.up_proj_scale"},
                                           {"weight", kI8, "weight_scale"}}) {
    EXPECT_EQ(Guess({{codes, type, {2, 4}}, {scale, kF32, {2}}}), "unknown") << codes << scale;
  }
}

TEST(DetectConventionTest, LeavesOtherIntegersAlone) {
  using enum FileDType;
  for (const char* name :
       {"m.position_ids", "m.token_type_ids", "m.attn.bias", "m.attn.relative_position_index",
        "m.weight_mask", "m.norm.num_batches_tracked"}) {
    EXPECT_EQ(Guess({{name, kI32, {2, 4}},
                     {"m.attn.logit_scale", kF32, {2}},
                     {"m.attn.scale", kF32, {2}},
                     {"m.norm.scale", kF32, {2}},
                     {"m.weight", kF32, {2, 4}},
                     {"m.weight_scale", kF32, {2}},
                     {"m.scale", kF32, {}},
                     {"logit_scale", kF32, {}}}),
              "plain")
        << name;
  }
  EXPECT_EQ(Guess({{"m.weight", kI64, {2, 4}}, {"m.scale", kF32, {}}}), "plain");
  EXPECT_EQ(Guess({{"m.weight", kI32, {4}}, {"m.scale", kF32, {}}}), "plain");
  EXPECT_EQ(Guess({{"m.weight", kU8, {2, 4}}, {"n.weight_scale", kF32, {}}}), "plain");
}

TEST(DetectConventionTest, ReportsDescriptionsWithoutAMethod) {
  using enum FileDType;
  const Entries mlx = {{"m.weight", kU32, {2, 4}}, {"m.scales", kF16, {2, 1}}};
  const Entries plain = {{"m.weight", kF32, {2, 4}}};
  constexpr const char* kMlx = R"({"quantization":{"group_size":64,"bits":4}})";
  EXPECT_EQ(Guess(mlx, {}, kMlx), "mlx");
  EXPECT_EQ(Guess(mlx, {}, R"({"quantization_config":{"group_size":64,"bits":4}})"), "mlx");
  EXPECT_EQ(Guess(mlx, {}, R"({"quantization_config":{"bits":4}})"), "unknown");
  EXPECT_EQ(Guess(plain, {}, kMlx), "plain");
  EXPECT_EQ(Guess(plain, {}, R"({"quantization_config":{"load_in_4bit":true}})"), "unknown");
  EXPECT_EQ(Guess(plain, {}, R"({"quantization_config":{"quant_method":null}})"), "plain");
  EXPECT_EQ(Guess(plain, {}, R"({"quantization_config":[4]})"), "plain");
}

TEST(DetectConventionTest, BelievesTheConfigAndOurRecords) {
  const Entries fp8 = {{"m.weight", FileDType::kF8E4M3, {2, 4}}};
  EXPECT_EQ(Guess(fp8, {}, R"({"quantization_config":{"quant_method":"fbgemm_fp8"}})"),
            "fbgemm_fp8");
  EXPECT_EQ(Guess(fp8, {}, R"({"quantization_config":{"quant_method":7}})"), "unknown");
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { Guess(fp8, {}, "no json"); }).substr(0, 8),
            "config: ");
  FileContents contents;
  contents.AddQuantized({"w", ParseQuantSpec("fp8_e4m3"), {64, 96}, DType::kFloat32});
  EXPECT_EQ(Guess(contents.tensors, contents.metadata,
                  R"({"quantization_config":{"quant_method":"fp8"}})"),
            "narrowfloat");
}

}  // namespace
}  // namespace narrowfloat::io
