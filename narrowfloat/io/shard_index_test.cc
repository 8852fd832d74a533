// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/shard_index.h"

#include <gtest/gtest.h>

#include "narrowfloat/io/testing.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat::io {
namespace {

std::string Refusal(const std::string& text) {
  return MessageOf<InvalidArgument>([&] { ParseIndex("i", text); });
}

TEST(ShardIndexTest, PrintsWhatItReads) {
  const std::string text =
      "{\n"
      "  \"metadata\": {\n"
      "    \"total_parameters\": 5,\n"
      "    \"total_size\": 20\n"
      "  },\n"
      "  \"weight_map\": {\n"
      "    \"a\": \"m-1.safetensors\",\n"
      "    \"b\": \"m-2.safetensors\"\n"
      "  }\n"
      "}\n";
  ShardIndex index = ParseIndex("i", text);
  EXPECT_EQ(index.tensors.at("m-2.safetensors"), std::vector<std::string>{"b"});
  index.total_size = 20;
  EXPECT_EQ(PrintIndex("i", index), text);
}

TEST(ShardIndexTest, KeepsOtherMetadataOfAnyTypeAndForgetsTheRest) {
  const ShardIndex index = ParseIndex("i", R"({"x":[{},1],"metadata":{"c":[1,[],{"d":"e\n"}],)"
                                           R"("total_size":3,"b":null,"f":-0.5},)"
                                           R"("weight_map":{"a":"m.safetensors"},"y":{"z":""}})");
  EXPECT_EQ(index.other_metadata, R"({"b":null,"c":[1,[],{"d":"e\n"}],"f":-0.5})");
  const std::string weights = R"("weight_map":{"a":"m.safetensors"})";
  EXPECT_EQ(ParseIndex("i", "{" + weights + R"(,"metadata":7})").other_metadata, "{}");
  EXPECT_EQ(Refusal("{" + weights + R"(,"metadata":{"b":1,"b":2}})"),
            "i: names must be unique, got 'b' twice");
  EXPECT_EQ(Refusal("{" + weights + "," + weights + "}"),
            "i: names must be unique, got 'weight_map' twice");
}

TEST(ShardIndexTest, TheBoundsHoldForReadingAndForPrinting) {
  ShardIndex index;
  std::vector<std::string>& names = index.tensors["m.safetensors"];
  for (std::size_t i = 0; i < kMaxIndexTensors; ++i) names.push_back(std::to_string(i));
  std::string text = PrintIndex("i", index);
  EXPECT_EQ(ParseIndex("i", text).tensors.at("m.safetensors").size(), kMaxIndexTensors);
  text.insert(text.rfind("\n  }"), R"(,"more":"m.safetensors")");
  EXPECT_EQ(Refusal(text), "i: weight_map must name at most 1000000 tensors, got more");
  names.push_back("more");
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { PrintIndex("i", index); }),
            "i: weight_map must name at most 1000000 tensors, got 1000001");
  names.resize(100'000);
  for (std::string& name : names) name.insert(0, 1024, 'n');
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { PrintIndex("i", index); }),
            "i: an index must have at most 100000000 bytes, got 105388956");
  text = R"({"weight_map":{)";
  for (std::size_t i = 0; i <= kMaxIndexFiles; ++i)
    text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"" + std::to_string(i) +
            ".safetensors\"";
  EXPECT_EQ(Refusal(text + "}}"), "i: weight_map must name at most 100000 files, got more");
  const std::string other =
      "i: an index must have at most 1048576 bytes beside weight_map, got more";
  std::string metadata = R"({"a":")" + std::string(kMaxIndexOther - 40, 'x') + "\"";
  EXPECT_EQ(Refusal(R"({"metadata":)" + metadata + R"(,"b":"0123456789012345678901234567890"}})"),
            other);
  index = ParseIndex("i", R"({"weight_map":{"a":"m.safetensors"},"metadata":)" + metadata + "}}");
  index.total_size = 123'456'789'012;
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { PrintIndex("i", index); }), other);
}

TEST(ShardIndexTest, NamesStayInTheFolder) {
  for (const char* file : {"/etc/x.safetensors", "../x.safetensors", "a/../../x.safetensors",
                           "sub/x.safetensors", "..", "", "x.bin"}) {
    EXPECT_EQ(Refusal(R"({"weight_map":{"a":")" + std::string(file) + "\"}}"),
              "i: weight_map must name *.safetensors files of its own folder, got '" +
                  std::string(file) + "'");
  }
  const std::string nul = R"({"weight_map":{"a":"x\u0000.safetensors"}})";
  EXPECT_EQ(Refusal(nul),
            std::string("i: weight_map must name *.safetensors files of its own folder, ") +
                std::string("got 'x\0.safetensors'", 20).c_str());
}

TEST(ShardIndexTest, RefusesWhatIsNoIndex) {
  EXPECT_EQ(Refusal("[]"), "i: an index needs an object weight_map, got none");
  EXPECT_EQ(Refusal("{}"), "i: an index needs an object weight_map, got none");
  EXPECT_EQ(Refusal(R"({"weight_map":[]})"), "i: an index needs an object weight_map, got none");
  EXPECT_EQ(Refusal(R"({"weight_map":{}})"),
            "i: weight_map must name at least one tensor, got none");
  EXPECT_EQ(Refusal(R"({"weight_map":{"a":1}})"),
            "i: weight_map must map strings to strings, 'a' is number");
  EXPECT_EQ(Refusal(R"({"weight_map":{"a":"x.safetensors","a":"x.safetensors"}})"),
            "i: names must be unique, got 'a' twice");
  EXPECT_EQ(Refusal(R"({"metadata":)" + std::string(100000, '[')),
            "i: JSON must nest at most 8 deep, got more");
  EXPECT_EQ(Refusal(""), "i: must be JSON, got a syntax error at byte 1");
}

}  // namespace
}  // namespace narrowfloat::io
