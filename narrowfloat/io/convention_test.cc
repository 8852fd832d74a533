// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/convention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/io/testing.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat::io {
namespace {

/// Returns the header of a file with `contents`.
Header HeaderOf(FileContents contents) {
  LayOut("f", contents.tensors);
  return {contents.tensors, contents.metadata};
}

Header HeaderOf(const QuantizedRecord& record) {
  FileContents contents;
  contents.AddQuantized(record);
  return HeaderOf(std::move(contents));
}

std::string Refusal(const Header& header) {
  return MessageOf<InvalidArgument>([&] { GroupTensors("f", header); });
}

TEST(ConventionTest, StoresThePlannedBuffersUnderTheirRoles) {
  const Header header =
      HeaderOf({"w", ParseQuantSpec("mxfp8_e5m2:columnwise=1"), {64, 96}, DType::kBFloat16});
  const std::vector<TensorEntry> expected = {
      {"w", FileDType::kBF16, {0}, 0, 0},
      {"w.columnwise_scale_inv", FileDType::kF8E8M0, {4, 128}, 0, 512},
      {"w.rowwise_scale_inv", FileDType::kF8E8M0, {128, 4}, 512, 1024},
      {"w.columnwise_data", FileDType::kF8E5M2, {64, 96}, 1024, 1024 + 6144},
      {"w.rowwise_data", FileDType::kF8E5M2, {64, 96}, 1024 + 6144, 1024 + 2 * 6144}};
  EXPECT_EQ(header.tensors, expected);
  EXPECT_EQ(header.metadata,
            (Metadata{{"narrowfloat.w", R"({"spec":"mxfp8_e5m2:columnwise=1","shape":[64,96],)"
                                        R"("dtype":"bfloat16"})"}}));
}

TEST(ConventionTest, ABufferSharedByTwoRolesIsStoredOnce) {
  const Header header =
      HeaderOf({"w", ParseQuantSpec("fp8_e4m3:columnwise=1"), {3, 5}, DType::kFloat32});
  std::set<std::string> names;
  for (const TensorEntry& entry : header.tensors) names.insert(entry.name);
  EXPECT_EQ(names, (std::set<std::string>{"w", "w.rowwise_data", "w.rowwise_scale_inv",
                                          "w.columnwise_data", "w.scale", "w.amax_rowwise"}));
}

TEST(ConventionTest, EverySchemeComesBack) {
  for (const SchemeInfo& scheme : kSchemes) {
    for (const bool columnwise : {false, true}) {
      QuantizedRecord record{"a.b", {.scheme = &scheme}, {2, 33, 64}, DType::kFloat16};
      record.spec.columnwise = columnwise;
      FileContents contents;
      contents.AddQuantized(record);
      contents.AddPlain("a.a", FileDType::kF32, {4});
      const std::vector<StoredTensor> tensors = GroupTensors("f", HeaderOf(std::move(contents)));
      ASSERT_EQ(tensors.size(), 2u) << scheme.name;
      EXPECT_EQ(tensors[0].name, "a.a");
      EXPECT_EQ(tensors[0].quantized, std::nullopt);
      EXPECT_EQ(tensors[1].quantized, record) << scheme.name;
      EXPECT_EQ(tensors[1].plan, StoredBuffers(record.spec, record.shape));
      EXPECT_EQ(tensors[1].entries.size(), tensors[1].plan.size());
    }
  }
}

/// Returns `count` ones, separated by commas.
std::string Ones(std::size_t count) {
  std::string text = "1";
  for (std::size_t i = 1; i < count; ++i) text += ",1";
  return text;
}

TEST(ConventionTest, RefusesRecordsThatCannotBeRead) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "must be JSON, got a syntax error at byte 1"},
      {"[]", "must be an object of spec, shape and dtype, got []"},
      {R"({"spec":"mxfp8_e4m3","shape":[1]})",
       R"(must be an object of spec, shape and dtype, got {"spec":"mxfp8_e4m3","shape":[1]})"},
      {R"({"spec":1,"shape":[1],"dtype":"float32"})",
       "spec must be a string of at most 1024 bytes, got 1"},
      {R"({"spec":"mxfp8_e4m3:x=1","shape":[1],"dtype":"float32"})",
       "spec: unknown option 'x'; there are: "},
      {R"({"spec":"mxfp8_e4m3","shape":1,"dtype":"float32"})", "shape must be a list, got 1"},
      {R"({"spec":"mxfp8_e4m3","shape":[-1],"dtype":"float32"})",
       "shape must hold integers from 0 to 2^63 - 1, got -1"},
      {fmt::format(R"({{"spec":"mxfp8_e4m3","shape":[{}],"dtype":"float32"}})", Ones(65)),
       "shape must have at most 64 dimensions, got more"},
      {R"({"spec":"mxfp8_e4m3","shape":[1],"dtype":"uint8"})",
       R"(dtype must be one of float32, float16, bfloat16, got "uint8")"},
      {R"({"spec":"mxfp8_e4m3","shape":[4294967296,4294967296],"dtype":"float32"})",
       "shape: 4294967296x4294967296 has more elements than memory can address"},
      {R"({"spec":"mxfp8_e4m3","shape":[[[1]]],"dtype":"float32"})",
       "JSON must nest at most 2 deep, got more"},
  };
  for (const auto& [text, rule] : cases) {
    const std::string message = Refusal({{}, {{"narrowfloat.w", text}}});
    const std::string expected = "f: metadata 'narrowfloat.w': " + rule;
    // A message may end with a list of options from the registry. The test does not repeat it.
    EXPECT_EQ(rule.ends_with(": ") ? message.substr(0, expected.size()) : message, expected);
  }
}

TEST(ConventionTest, ChecksBuffersAgainstThePlan) {
  const QuantizedRecord record{"w", ParseQuantSpec("mxfp8_e4m3"), {64, 96}, DType::kFloat32};
  Header missing = HeaderOf(record);
  std::erase_if(missing.tensors, [](const TensorEntry& e) { return e.name == "w.rowwise_data"; });
  EXPECT_EQ(Refusal(missing),
            "f: metadata 'narrowfloat.w': its buffer 'w.rowwise_data' is missing");
  Header other_shape = HeaderOf(record);
  other_shape.tensors[1].shape = {64, 4};
  EXPECT_EQ(
      Refusal(other_shape),
      "f: metadata 'narrowfloat.w': its buffer 'w.rowwise_scale_inv' must be F8_E8M0 128x4 by the "
      "plan, got F8_E8M0 64x4");
  Header other_type = HeaderOf(record);
  other_type.tensors[1].dtype = FileDType::kU8;
  EXPECT_EQ(
      Refusal(other_type),
      "f: metadata 'narrowfloat.w': its buffer 'w.rowwise_scale_inv' must be F8_E8M0 128x4 by the "
      "plan, got U8 128x4");
}

TEST(ConventionTest, ANameIsAPlainTensorOrAQuantizedOne) {
  Header header = HeaderOf({"w", ParseQuantSpec("mxfp8_e4m3"), {64, 96}, DType::kFloat32});
  const auto mark = std::ranges::find(header.tensors, "w", &TensorEntry::name);
  ASSERT_NE(mark, header.tensors.end());
  mark->shape = {1};
  EXPECT_EQ(Refusal(header), "f: 'w' must be a tensor or a quantized one, it is both");
}

TEST(ConventionTest, TheMarkIsNoTensorAndMayBeMissing) {
  Header header = HeaderOf({"w", ParseQuantSpec("nvfp4"), {64, 96}, DType::kBFloat16});
  const auto mark = std::ranges::find(header.tensors, "w", &TensorEntry::name);
  ASSERT_NE(mark, header.tensors.end());
  EXPECT_EQ(mark->dtype, FileDType::kBF16);
  EXPECT_EQ(mark->shape, Shape{0});
  const std::vector<StoredTensor> marked = GroupTensors("f", header);
  ASSERT_EQ(marked.size(), 1u);
  header.tensors.erase(mark);
  EXPECT_EQ(GroupTensors("f", header).front().quantized, marked.front().quantized);
}

TEST(ConventionTest, OtherKeysOfTheMetadataStay) {
  EXPECT_EQ(WithoutOwnKeys({{"format", "pt"}, {"narrowfloat.w", "x"}, {"narrowfloat", "y"}}),
            (Metadata{{"format", "pt"}, {"narrowfloat", "y"}}));
}

TEST(ConventionTest, DescriptionsOfAllConventionsGo) {
  const Metadata rest{{"format", "pt"}, {"c", "{}"}};
  Metadata described = rest;
  described.insert({{"narrowfloat.w", "x"}, {"_quantization_metadata", "{}"}});
  described.insert({{"tensor_names", R"(["a", 1, "b"])"}, {"a", "{}"}, {"b", "{}"}});
  EXPECT_EQ(WithoutDescriptions(described), rest);
  Metadata damaged = rest;
  damaged.insert({"tensor_names", R"(["c")"});
  EXPECT_EQ(WithoutDescriptions(damaged), rest);
}

}  // namespace
}  // namespace narrowfloat::io
