// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/safetensors_file.h"

#include <gtest/gtest.h>

#include <numeric>

#include "narrowfloat/io/testing.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat::io {
namespace {

const char* const kHeader = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                            R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";

std::vector<std::byte> Counting(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

std::string Refusal(const std::filesystem::path& path) {
  return MessageOf<InvalidArgument>([&] { SafetensorsFile{path}; });
}

TEST(SafetensorsFileTest, ReadsPartsOfTensors) {
  const TemporaryFolder folder;
  WriteText(folder / "f", FileBytes(kHeader, "0123456789A"));
  const SafetensorsFile file(folder / "f");
  ASSERT_NE(file.Find("b"), nullptr);
  EXPECT_EQ(file.Find("c"), nullptr);
  std::string out(2, '\0');
  file.Read(*file.Find("b"), 1, std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, "9A");
  EXPECT_EQ(
      MessageOf<InvalidArgument>(
          [&] { file.Read(*file.Find("b"), 2, std::as_writable_bytes(std::span(out))); }),
      "safetensors: " + file.path() + ": a read of 'b' must end within its 3 bytes, got 2 from 2");
}

TEST(SafetensorsFileTest, RefusesTruncationAtEveryByte) {
  const TemporaryFolder folder;
  const std::string whole = FileBytes(kHeader, "0123456789A");
  const std::string path = (folder / "f").string();
  const std::string header_bytes = std::to_string(whole.size() - 8 - 11);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    WriteText(path, std::string_view(whole).substr(0, size));
    std::string expected = "safetensors: " + path;
    if (size < 8) {
      expected += ": a file must begin with 8 bytes of header length, got " + std::to_string(size);
    } else if (size < whole.size() - 11) {
      expected += ": the header of " + header_bytes + " bytes must end within the file, got " +
                  std::to_string(size);
    } else if (const std::size_t data = size - (whole.size() - 11); data < 8) {
      expected += ": 'a' must end within the data of " + std::to_string(data) + " bytes, got 8";
    } else {
      expected += ": 'b' must end within the data of " + std::to_string(data) + " bytes, got 11";
    }
    EXPECT_EQ(Refusal(path), expected);
  }
  WriteText(path, whole + "x");
  EXPECT_EQ(Refusal(path),
            "safetensors: " + path + ": the tensors must fill the data of 12 bytes, got 11");
}

TEST(SafetensorsFileTest, ChecksTheHeadersLengthBeforeItIsUsed) {
  const TemporaryFolder folder;
  const std::string path = (folder / "f").string();
  WriteText(path, std::string(8, '\xff') + "{}");
  const std::string rule = ": the header must have at most 100000000 bytes, got ";
  const std::string advice = ": this is no safetensors file, or its first 8 bytes are damaged";
  EXPECT_EQ(Refusal(path), "safetensors: " + path + rule + "18446744073709551615" + advice);
  WriteText(path, std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + "{}");
  EXPECT_EQ(Refusal(path), "safetensors: " + path + rule + "100000001" + advice);
}

TEST(SafetensorsWriterTest, WhatItWritesIsReadAgain) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "f",
                           {{"codes", FileDType::kU8, {2, 5}},
                            {"empty", FileDType::kF16, {0, 3}},
                            {"x", FileDType::kF32, {3}}},
                           {{"format", "pt"}});
  const auto codes = Counting(10), x = Counting(12);
  writer.Append("codes", std::span(codes).first(4));  // pieces of tensors in any order
  writer.Append("x", x);
  writer.Append("codes", std::span(codes).subspan(4));
  writer.Finish();
  EXPECT_EQ(folder.Names(), std::set<std::string>{"f"});

  const SafetensorsFile file(folder / "f");
  EXPECT_EQ(file.header(), writer.header());
  EXPECT_EQ(file.header().tensors[0].name, "x") << "the type of larger alignment comes first";
  for (const auto& [name, expected] : {std::pair{"codes", codes}, std::pair{"x", x}}) {
    std::vector<std::byte> got(expected.size());
    file.Read(*file.Find(name), 0, got);
    EXPECT_EQ(got, expected) << name;
  }
}

TEST(SafetensorsWriterTest, RefusesMoreFewerAndOtherBytes) {
  const TemporaryFolder folder;
  WriteText(folder / "f", "old");
  const std::string source = "safetensors: " + (folder / "f").string();
  const auto four = Counting(4);
  {
    SafetensorsWriter writer(folder / "f", {{"x", FileDType::kU8, {6}}}, {});
    EXPECT_EQ(MessageOf<InvalidArgument>([&] { writer.Append("y", four); }),
              source + ": 'y' must be in the header");
    writer.Append("x", four);
    EXPECT_EQ(MessageOf<InvalidArgument>([&] { writer.Append("x", four); }),
              source + ": 'x' must have 6 bytes, got 4 more after 4");
    EXPECT_EQ(MessageOf<InvalidArgument>([&] { writer.Finish(); }),
              source + ": 'x' must have 6 bytes, got 4");
  }
  EXPECT_EQ(folder.Names(), std::set<std::string>{"f"});
  EXPECT_EQ(ReadText(folder / "f"), "old");
}

TEST(SafetensorsFileTest, FilesThatPeopleTakeForOneAreNamed) {
  const TemporaryFolder folder;
  for (const auto& [text, kind] : std::vector<std::pair<std::string, std::string>>{
           {"version https://git-lfs",
            "a Git LFS pointer, of which the file itself was not fetched"},
           {"<!DOCTYPE html>", "an HTML page"},
           {"GGUF\x03....", "a GGUF file"},
           {"PK\x03\x04....", "a zip archive, as torch.save writes"},
           {"\x80\x02\x8a\nl\xfc\x9c\x46", "a pickle, as torch.save writes"}}) {
    WriteText(folder / "f", text);
    EXPECT_EQ(
        MessageOf<InvalidArgument>([&] { SafetensorsFile(folder / "f"); }),
        "safetensors: " + (folder / "f").string() + ": must be a safetensors file, it is " + kind);
  }
}

}  // namespace
}  // namespace narrowfloat::io
