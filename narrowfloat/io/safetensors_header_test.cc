// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/safetensors_header.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "narrowfloat/io/testing.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat::io {
namespace {

std::string Refusal(const std::string& text, std::uint64_t data_bytes = 0) {
  return MessageOf<InvalidArgument>([&] { ParseHeader("f", text, data_bytes); });
}

/// Returns a header with one entry named x, with the three values as JSON.
std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"x":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(SafetensorsHeaderTest, ReadsNamesTypesShapesPlacesAndMetadata) {
  const Header header = ParseHeader("f",
                                    R"({"b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},)"
                                    R"("a":{"data_offsets":[0,2],"shape":[],"dtype":"BF16"},)"
                                    R"("e":{"dtype":"I8","shape":[4,0],"data_offsets":[2,2]},)"
                                    R"("__metadata__":{"format":"pt","k":"\u00e9"}}   )",
                                    26);
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0], (TensorEntry{"a", FileDType::kBF16, {}, 0, 2}));
  EXPECT_EQ(header.tensors[1], (TensorEntry{"e", FileDType::kI8, {4, 0}, 2, 2}));
  EXPECT_EQ(header.tensors[2], (TensorEntry{"b", FileDType::kF32, {2, 3}, 2, 26}));
  EXPECT_EQ(header.metadata, (Metadata{{"format", "pt"}, {"k", "\u00e9"}}));
  EXPECT_EQ(header.DataBytes(), 26u);
}

TEST(SafetensorsHeaderTest, AnEmptyFileIsLegal) {
  EXPECT_EQ(ParseHeader("f", "{}", 0), Header{});
  EXPECT_EQ(ParseHeader("f", "{}      ", 0), Header{});
}

TEST(SafetensorsHeaderTest, KnowsEveryTypeAndItsWidth) {
  const std::vector<std::pair<std::string, int>> bits = {
      {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
      {"I64", 64},        {"U64", 64}};
  ASSERT_EQ(bits.size(), kFileDTypes.size());
  for (const auto& [name, width] : bits) {
    const auto bytes = static_cast<std::uint64_t>(width);  // 8 elements of `width` bits
    const std::string text = Entry('"' + name + '"', "[2,4]", "[0," + std::to_string(bytes) + "]");
    EXPECT_EQ(Info(ParseHeader("f", text, bytes).tensors.at(0).dtype).name, name);
    EXPECT_EQ(Refusal(Entry('"' + name + '"', "[2,4]", "[0,1]"), 1),
              "f: 'x' of " + name + " 2x4 takes " + std::to_string(bytes) +
                  " bytes, its data_offsets span 1");
  }
}

TEST(SafetensorsHeaderTest, PackedTypesEndOnAByte) {
  EXPECT_EQ(ParseHeader("f", Entry("\"F4\"", "[2,3]", "[0,3]"), 3).tensors[0].Bytes(), 3u);
  EXPECT_EQ(Refusal(Entry("\"F4\"", "[3]", "[0,2]"), 2),
            "f: 'x' of F4 3 must end on a whole byte, got 12 bits");
  EXPECT_EQ(Refusal(Entry("\"F6_E2M3\"", "[3]", "[0,2]"), 2),
            "f: 'x' of F6_E2M3 3 must end on a whole byte, got 18 bits");
  EXPECT_EQ(Refusal(Entry("\"F6_E3M2\"", "[]", "[0,1]"), 1),
            "f: 'x' of F6_E3M2 scalar must end on a whole byte, got 6 bits");
}

/// Returns a header of two tensors of one byte each.
std::string Two(std::string_view first, std::string_view second) {
  return fmt::format(R"({{"{}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},)"
                     R"("{}":{{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}}})",
                     first, second);
}

struct Case {
  std::string text;
  std::uint64_t data_bytes;
  std::string message;
};

TEST(SafetensorsHeaderTest, RefusesWhatIsNoHeader) {
  const std::string deep(1000000, '[');
  for (const Case& c : std::vector<Case>{
           {"", 0, "f: the header must begin with '{', got nothing"},
           {" {}", 0, "f: the header must begin with '{', got byte 0x20"},
           {"[]", 0, "f: the header must begin with '{', got byte 0x5b"},
           {"{", 0, "f: must be JSON, got a syntax error at byte 2"},
           {"{}x", 0, "f: must be JSON, got a syntax error at byte 3"},
           {std::string("{}\0", 3), 0, "f: JSON must have no NUL byte, got one at byte 2"},
           {"{\"\xff\":{}}", 0, "f: must be JSON, got a syntax error at byte 3"},
           {R"({"x":1e999})", 0,
            "f: JSON numbers must be in the range of binary64, got a larger one"},
           {R"({"a":)" + deep, 0, "f: 'a' must be an object, got array"},
           {R"({"a":{"shape":)" + deep, 0, "f: JSON must nest at most 3 deep, got more"},
           {R"({"a":{"shape":{}}})", 0, "f: 'a' shape must be a list, got object"},
           {R"({"a":{"dtype":[]}})", 0, "f: 'a' must have a known dtype, got array"},
           {Two("x", "x"), 2, "f: names must be unique, got 'x' twice"},
           {R"({"x":{"dtype":"U8","dtype":"I8"}})", 0,
            "f: names must be unique, got 'dtype' twice"},
           {R"({"__metadata__":{},"__metadata__":{}})", 0,
            "f: names must be unique, got '__metadata__' twice"},
           {R"({"__metadata__":null})", 0, "f: __metadata__ must be an object, got null"},
           {R"({"__metadata__":{"a":1}})", 0,
            "f: __metadata__ must map strings to strings, 'a' is number"},
           {R"({"__metadata__":{"a":{}}})", 0,
            "f: __metadata__ must map strings to strings, 'a' is object"},
           {R"({"__metadata__":{"a":"1","a":"2"}})", 0, "f: names must be unique, got 'a' twice"},
       }) {
    EXPECT_EQ(Refusal(c.text, c.data_bytes), c.message);
  }
}

TEST(SafetensorsHeaderTest, RefusesEntriesThatLie) {
  for (const Case& c : std::vector<Case>{
           {R"({"x":[]})", 0, "f: 'x' must be an object, got array"},
           {R"({"x":{}})", 0, "f: 'x' needs a dtype, got none"},
           {R"({"x":{"dtype":"U8"}})", 0, "f: 'x' needs a shape, got none"},
           {R"({"x":{"dtype":"U8","shape":[]}})", 0, "f: 'x' needs a data_offsets, got none"},
           {R"({"x":{"dtype":"U8","shape":[],"data_offsets":[0,1],"y":0}})", 1,
            "f: 'x' must have dtype, shape and data_offsets only, got 'y'"},
           {Entry("\"F99\"", "[]", "[0,1]"), 1, "f: 'x' must have a known dtype, got \"F99\""},
           {Entry("\"f32\"", "[]", "[0,4]"), 4, "f: 'x' must have a known dtype, got \"f32\""},
           {Entry("7", "[]", "[0,1]"), 1, "f: 'x' must have a known dtype, got 7"},
           {Entry("\"U8\"", "3", "[0,3]"), 3, "f: 'x' shape must be a list, got number"},
           {Entry("\"U8\"", "[-1]", "[0,1]"), 1,
            "f: 'x' shape must hold integers from 0 to 2^63 - 1, got -1"},
           {Entry("\"U8\"", "[1.5]", "[0,1]"), 1,
            "f: 'x' shape must hold integers from 0 to 2^63 - 1, got 1.5"},
           {Entry("\"U8\"", "[\"1\"]", "[0,1]"), 1,
            "f: 'x' shape must hold integers from 0 to 2^63 - 1, got \"1\""},
           {Entry("\"U8\"", "[[]]", "[0,1]"), 1, "f: JSON must nest at most 3 deep, got more"},
           {Entry("\"U8\"", "[9223372036854775808]", "[0,1]"), 1,
            "f: 'x' shape must hold integers from 0 to 2^63 - 1, got 9223372036854775808"},
           {Entry("\"U8\"", "[1]", "[0]"), 1, "f: 'x' data_offsets must be two numbers, got 1"},
           {Entry("\"U8\"", "[1]", "[0,1,2]"), 1, "f: 'x' data_offsets must be two numbers, got 3"},
           {Entry("\"U8\"", "[1]", "[-1,0]"), 1,
            "f: 'x' data_offsets must hold integers from 0 to 2^63 - 1, got -1"},
           {Entry("\"U8\"", "[1]", "[2,1]"), 2, "f: 'x' data_offsets must not fall, got 2 to 1"},
           {Entry("\"U8\"", "[2]", "[0,1]"), 1,
            "f: 'x' of U8 2 takes 2 bytes, its data_offsets span 1"},
       }) {
    EXPECT_EQ(Refusal(c.text, c.data_bytes), c.message);
  }
}

TEST(SafetensorsHeaderTest, SizesDoNotOverflow) {
  // The product 2^32 * 2^32 overflows to 0 elements.
  EXPECT_EQ(Refusal(Entry("\"U8\"", "[4294967296,4294967296]", "[0,0]")),
            "f: 'x', shape: 4294967296x4294967296 has more elements than memory can address");
  // 2^59 elements of 64 bits: the bits overflow.
  EXPECT_EQ(Refusal(Entry("\"F64\"", "[576460752303423488]", "[0,0]")),
            "f: 'x' of F64 576460752303423488 has more bytes than memory can address");
  EXPECT_EQ(Refusal(Entry("\"U8\"", "[9223372036854775807,0]", "[0,1]"), 1),
            "f: 'x', shape: 9223372036854775807x0 has more rows than memory can address");
}

/// Returns a shape of `rank` dimensions of 1, as JSON.
std::string Ones(std::size_t rank) {
  std::string text = "[";
  for (std::size_t i = 0; i < rank; ++i) text += i == 0 ? "1" : ",1";
  return text + ']';
}

TEST(SafetensorsHeaderTest, TheRankIsLimited) {
  EXPECT_EQ(ParseHeader("f", Entry("\"U8\"", Ones(64), "[0,1]"), 1).tensors[0].shape, Shape(64, 1));
  EXPECT_EQ(Refusal(Entry("\"U8\"", Ones(65), "[0,1]"), 1),
            "f: 'x' must have at most 64 dimensions, got more");
  EXPECT_EQ(Refusal(Entry("\"U8\"", Ones(1'000'000), "[0,1]"), 1),
            "f: 'x' must have at most 64 dimensions, got more");
}

TEST(SafetensorsHeaderTest, WhatItKeepsInMemoryIsLimited) {
  const auto object = [](std::size_t members, auto&& member) {
    std::string text;
    for (std::size_t i = 0; i < members; ++i) {
      text += i == 0 ? "{" : ",";
      text += member(i);
    }
    return text + "}";
  };
  const auto tensors = [&](std::size_t count, int name_bytes) {
    return object(count, [&](std::size_t i) {
      return fmt::format(R"("{:.<{}}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i,
                         name_bytes);
    });
  };
  const auto metadata = [&](std::size_t count) {
    return fmt::format(R"({{"__metadata__":{}}})",
                       object(count, [](std::size_t i) { return fmt::format(R"("{}":"")", i); }));
  };
  EXPECT_EQ(ParseHeader("f", tensors(kMaxTensors, 6), 0).tensors.size(), kMaxTensors);
  EXPECT_EQ(Refusal(tensors(kMaxTensors + 1, 6)),
            "f: a file must have at most 100000 tensors, got more");
  EXPECT_EQ(ParseHeader("f", metadata(kMaxTensors), 0).metadata.size(), kMaxTensors);
  EXPECT_EQ(Refusal(metadata(kMaxTensors + 1)),
            "f: a file must have at most 100000 keys of metadata, got more");
  EXPECT_EQ(ParseHeader("f", tensors(1, 1024), 0).tensors.size(), 1u);
  EXPECT_EQ(Refusal(tensors(1, 1025)), "f: a name must have at most 1024 bytes, got 1025");
  EXPECT_EQ(Refusal(tensors(17000, 1024)),
            "f: names, shapes and metadata must have at most 16777216 bytes, got more");
  EXPECT_EQ(Refusal(fmt::format(R"({{"__metadata__":{{"a":"{:x<{}}"}}}})", "", 8 << 20)),
            "f: a JSON string, number or run of spaces must have at most 8388608 bytes, got "
            "8388610 at byte 21");
  EXPECT_EQ(Refusal(fmt::format(R"({{"a":{:1<{}}}})", "", 9'000'000)),
            "f: a JSON string, number or run of spaces must have at most 8388608 bytes, got "
            "9000000 at byte 5");
}

TEST(SafetensorsHeaderTest, QuotesInStringsDoNotEndThem) {
  const Header header = ParseHeader("f", R"({"__metadata__":{"a\\":"\"b\\\"","c":"\u0022"}})", 0);
  EXPECT_EQ(header.metadata, (Metadata{{"a\\", "\"b\\\""}, {"c", "\""}}));
}

TEST(SafetensorsHeaderTest, TheDataIsCoveredExactly) {
  const auto two = [](const char* a, const char* b) {
    return std::string(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)") + a +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + b + "}}";
  };
  EXPECT_EQ(ParseHeader("f", two("[2,4]", "[0,2]"), 4).tensors[0].name, "b");
  EXPECT_EQ(Refusal(two("[0,2]", "[3,5]"), 5),
            "f: 'b' must begin where the tensor before it ends, at 2, got 3 (a hole)");
  EXPECT_EQ(Refusal(two("[0,2]", "[1,3]"), 3),
            "f: 'b' must begin where the tensor before it ends, at 2, got 1 (an overlap)");
  EXPECT_EQ(Refusal(two("[0,2]", "[0,2]"), 2),
            "f: 'b' must begin where the tensor before it ends, at 2, got 0 (an overlap)");
  EXPECT_EQ(Refusal(two("[1,3]", "[3,5]"), 5),
            "f: 'a' must begin where the tensor before it ends, at 0, got 1 (a hole)");
  EXPECT_EQ(Refusal(two("[0,2]", "[2,4]"), 3), "f: 'b' must end within the data of 3 bytes, got 4");
  EXPECT_EQ(Refusal(two("[0,2]", "[2,4]"), 9),
            "f: the tensors must fill the data of 9 bytes, got 4");
  EXPECT_EQ(Refusal("{}", 1), "f: the tensors must fill the data of 1 bytes, got 0");
}

TEST(SafetensorsHeaderTest, PrintsWhatTheReferencePrints) {
  Header header;
  header.tensors = {{"b", FileDType::kU8, {3}},
                    {"z", FileDType::kF32, {2, 2}},
                    {"a", FileDType::kF32, {}},
                    {"é\"", FileDType::kBF16, {0}}};
  header.metadata = {{"format", "pt"}};
  LayOut("f", header.tensors);
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("z":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},)"
      R"("é\"":{"dtype":"BF16","shape":[0],"data_offsets":[20,20]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[20,23]}})";
  const std::string text = PrintHeader("f", header);
  EXPECT_EQ(text.size() % 8, 0u);
  EXPECT_EQ(text, FileBytes(json + std::string(text.size() - 8 - json.size(), ' '), ""));
  EXPECT_LT(text.size() - 8 - json.size(), 8u);
  EXPECT_EQ(ParseHeader("f", text.substr(8), header.DataBytes()), header);
}

TEST(SafetensorsHeaderTest, RefusesToWriteWhatNobodyCanRead) {
  const auto lay_out = [](std::vector<TensorEntry> tensors) {
    return MessageOf<InvalidArgument>([&] { LayOut("f", tensors); });
  };
  EXPECT_EQ(lay_out({{"x", FileDType::kU8, {1}}, {"x", FileDType::kF32, {1}}}),
            "f: names must be unique, got 'x' twice");
  EXPECT_EQ(lay_out({{"__metadata__", FileDType::kU8, {1}}}),
            "f: no tensor may be named __metadata__");
  EXPECT_EQ(lay_out({{std::string(1025, 'x'), FileDType::kU8, {1}}}),
            "f: a name must have at most 1024 bytes, got 1025");
  EXPECT_EQ(lay_out(std::vector<TensorEntry>(kMaxTensors + 1)),
            "f: a file must have at most 100000 tensors, got more");
  EXPECT_EQ(lay_out({{"x", FileDType::kF4, {1}}}),
            "f: 'x' of F4 1 must end on a whole byte, got 4 bits");
  EXPECT_EQ(lay_out({{"x", FileDType::kU8, Shape(65, 1)}}),
            "f: 'x' must have at most 64 dimensions, got more");
  EXPECT_EQ(MessageOf<InvalidArgument>([] {
              PrintHeader("f", {{{"\xff", FileDType::kU8, {1}}}, {}});
            }),
            "f: names and metadata must be UTF-8, got other bytes");
  EXPECT_EQ(MessageOf<InvalidArgument>([] {
              PrintHeader("f", {{}, {{"k", std::string(kMaxHeaderBytes, ' ')}}});
            }),
            "f: the header must have at most 100000000 bytes, got 100000032");
}

TEST(SafetensorsHeaderTest, WritesUpToTheBoundsOfReading) {
  const auto refusal = [](const Header& header) {
    return MessageOf<InvalidArgument>([&] { PrintHeader("f", header); });
  };
  Header names;  // 16 MiB of names
  for (int i = 0; i < 16384; ++i)
    names.tensors.push_back({fmt::format("{:01024}", i), FileDType::kU8, {}});
  LayOut("f", names.tensors);
  EXPECT_EQ(refusal(names), "no error");
  names.metadata = {{"", "x"}};
  EXPECT_EQ(refusal(names),
            "f: names, shapes and metadata must have at most 16777216 bytes, got more");

  constexpr std::size_t kLongest = (std::size_t{8} << 20) - 2;  // without its quotes
  EXPECT_EQ(refusal({{}, {{"a", std::string(kLongest, 'x')}}}), "no error");
  EXPECT_EQ(refusal({{}, {{"a", std::string(kLongest + 1, 'x')}}}),
            "f: a JSON string, number or run of spaces must have at most 8388608 bytes, got "
            "8388609 at byte 21");

  Header keys;
  for (std::size_t i = 0; i < kMaxTensors; ++i) keys.metadata.emplace(std::to_string(i), "");
  EXPECT_EQ(refusal(keys), "no error");
  keys.metadata.emplace("one more", "");
  EXPECT_EQ(refusal(keys), "f: a file must have at most 100000 keys of metadata, got more");
}

}  // namespace
}  // namespace narrowfloat::io
