// SPDX-License-Identifier: Apache-2.0
// Compares decoded values with group dq, and with the values that cs, ds, mx, bs and nv record.
#include <gtest/gtest.h>

#include <string>

#include "tests/conformance/golden_checks.h"

namespace narrowfloat::conformance {
namespace {

class GoldenDequantizeTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenDequantizeTest, EveryBackendGivesTheRecordedValues) {
  const GoldenCase golden = LoadGolden(GetParam());
  for (const auto& verbs : CpuVerbs()) CheckDequantize(golden, *verbs);
}

std::string NameOf(const testing::TestParamInfo<std::filesystem::path>& info) {
  return info.param.stem().string();
}

INSTANTIATE_TEST_SUITE_P(Given, GoldenDequantizeTest, testing::ValuesIn(GoldenFiles("dq")), NameOf);
INSTANTIATE_TEST_SUITE_P(CurrentScaling, GoldenDequantizeTest, testing::ValuesIn(GoldenFiles("cs")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(DelayedScaling, GoldenDequantizeTest, testing::ValuesIn(GoldenFiles("ds")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Mxfp8, GoldenDequantizeTest, testing::ValuesIn(GoldenFiles("mx")), NameOf);
INSTANTIATE_TEST_SUITE_P(Blocks, GoldenDequantizeTest, testing::ValuesIn(GoldenFiles("bs")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Nvfp4, GoldenDequantizeTest, testing::ValuesIn(GoldenFiles("nv")), NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
