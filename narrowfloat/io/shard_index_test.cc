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
  EXPECT_EQ(index.weight_map.at("b"), "m-2.safetensors");
  index.total_size = 20;
  EXPECT_EQ(PrintIndex(index), text);
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
