// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/strict_json.h"

#include <gtest/gtest.h>

#include <cmath>

#include "narrowfloat/io/testing.h"

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

TEST(PythonJsonTest, TheyAreWrittenBackInTheOrderOfTheText) {
  EXPECT_EQ(PrintPythonJson(ParseOrderedPythonJson(kText)),
            R"({
  "z": [
    1,
    Infinity,
    "NaN"
  ],
  "b": {
    "x": -Infinity,
    "a": null
  },
  "N\"aN": NaN,
  "e": []
})");
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
