// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/strict_json.h"

#include <gtest/gtest.h>

#include <cmath>

#include "narrowfloat/io/testing.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat::io {
namespace {

constexpr const char* kText =
    R"({"z": [1, Infinity, "NaN"], "b": {"x": -Infinity, "a": null}, "N\"aN": NaN, "e": []})";

TEST(PythonJsonTest, NumbersThatJsonLacksAreReadInTheirPlaces) {
  const nlohmann::json tree = ParsePythonJson("config", kText, 3);
  EXPECT_EQ(tree["z"][0], 1);
  EXPECT_EQ(tree["z"][1], INFINITY);
  EXPECT_EQ(tree["z"][2], "NaN");
  EXPECT_EQ(tree["b"]["x"], -INFINITY);
  EXPECT_TRUE(tree["b"]["a"].is_null());
  EXPECT_TRUE(std::isnan(tree["N\"aN"].get<double>()));
}

TEST(PythonJsonTest, AByteOrderMarkIsNoNumber) {
  const nlohmann::json tree = ParsePythonJson("config", "\xEF\xBB\xBF{\"a\": NaN, \"b\": 1}", 2);
  EXPECT_TRUE(std::isnan(tree["a"].get<double>()));
  EXPECT_EQ(tree["b"], 1);
}

TEST(MemberTest, NothingElseOfTheTextChanges) {
  // Has an integer beyond all types, all kinds of spaces, other names q, and bytes beyond ASCII.
  const std::string text =
      "{\n\t\"big\": 1000000000000000019884624838656,\t \"x\":[ 1e-05,{\"q\" :NaN} ],\r\n"
      "\t\"q\" : {\"q\": -Infinity},\n\t\"\xC3\xA9,q:\": \"q\\\"\"\n}\n\n";
  const std::string value = "{\"q\": -Infinity}";
  const std::size_t at = text.find(value);
  const auto with = [&](const std::string& other) {
    return std::string(text).replace(at, value.size(), other);
  };
  EXPECT_EQ(WithMember(text, "q", 7), with("7"));
  EXPECT_EQ(WithMember(text, "q", {{"b", {1, 2}}, {"a", 0}}),
            with("{\n\t\t\"b\": [\n\t\t\t1,\n\t\t\t2\n\t\t],\n\t\t\"a\": 0\n\t}"));
  const std::size_t end = text.size() - 4;
  EXPECT_EQ(WithMember(text, "new", {{"a", 0}}),
            std::string(text).insert(end, ",\n\t\"new\": {\n\t\t\"a\": 0\n\t}"));
  EXPECT_EQ(WithoutMember(text, "new"), text);
  EXPECT_EQ(WithoutMember(WithMember(text, "new", 1), "new"), text);
  const std::size_t begin = text.find(",\r\n");
  EXPECT_EQ(WithoutMember(text, "q"), std::string(text).erase(begin, at + value.size() - begin));
}

TEST(MemberTest, FirstLastAndOnlyOnes) {
  EXPECT_EQ(WithoutMember(R"({"a": 1, "b": [2, {}], "c": {"a": 3}})", "a"),
            R"({"b": [2, {}], "c": {"a": 3}})");
  EXPECT_EQ(WithoutMember(R"({"a": 1, "b": [2, {}], "c": {"a": 3}})", "b"),
            R"({"a": 1, "c": {"a": 3}})");
  EXPECT_EQ(WithoutMember(R"({"a": 1, "b": [2, {}], "c": {"a": 3}})", "c"),
            R"({"a": 1, "b": [2, {}]})");
  EXPECT_EQ(WithoutMember(R"({ "\u0061": "}" })", "a"), "{  }");
  EXPECT_EQ(WithMember(R"({ "\u0061": "}" })", "a", nullptr), R"({ "\u0061": null })");
  EXPECT_EQ(WithMember(R"({"a": 1})", "b", {{"c", 2}}), R"({"a": 1, "b": {"c":2}})");
  EXPECT_EQ(WithMember("{}", "b", {{"c", 2}}), "{\n  \"b\": {\n    \"c\": 2\n  }\n}");
  EXPECT_EQ(WithMember(" {\n}\n", "b", 2), " {\n  \"b\": 2\n\n}\n");
}

TEST(MemberTest, MembersOfAnObjectWithin) {
  const std::string text =
      R"({"a": {"x": 1, "q" :[{"q": NaN}], "y": "}"}, "q": 2, "b": [{"q": 1}]})";
  const std::string member = R"(, "q" :[{"q": NaN}])";
  EXPECT_EQ(WithoutMember(text, "a", "q"),
            std::string(text).erase(text.find(member), member.size()));
  EXPECT_EQ(WithoutMember(R"({ "\u0061" : {"q": 1} , "b": 2})", "a", "q"),
            R"({ "\u0061" : {} , "b": 2})");
  for (const char* object : {"b", "q", "x", "none"}) {
    EXPECT_EQ(WithoutMember(text, object, "q"), text) << "no object of this name";
  }
  EXPECT_EQ(WithoutMember(text, "a", "none"), text);
}

TEST(PythonJsonTest, BoundsAndPlacesOfErrorsAreThoseOfStrictJson) {
  const auto refusal = [](const char* text) {
    return MessageOf<InvalidArgument>([&] { ParsePythonJson("config", text, 2); });
  };
  EXPECT_EQ(refusal("[NaN, Infinity, x]"), "config: must be JSON, got a syntax error at byte 17");
  EXPECT_EQ(refusal("[[[NaN]]]"), "config: JSON must nest at most 2 deep, got more");
  EXPECT_EQ(refusal(R"({"a": NaN, "a": 1})"), "config: names must be unique, got 'a' twice");
  for (const char* text : {"Inf", "-NaN", "{NaN: 1}", "[NaN NaN]", "[nan]", "[+Infinity]"}) {
    EXPECT_NE(refusal(text).find("syntax error"), std::string::npos) << text;
  }
  EXPECT_EQ(MessageOf<InvalidArgument>([] { ParseStrictJson("header", "[NaN]", 2); }),
            "header: must be JSON, got a syntax error at byte 2")
      << "headers of tensors are strict";
}

}  // namespace
}  // namespace narrowfloat::io
