// SPDX-License-Identifier: Apache-2.0
// Compares with recorded tables: group ct (casts, scales from an amax), group sw (swizzled scales)
// and group rht (the Hadamard transform alone).
#include <gtest/gtest.h>

#include <string>

#include "tests/conformance/golden_checks.h"

namespace narrowfloat::conformance {
namespace {

class GoldenTableTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenTableTest, GivesTheRecordedItems) {
  const GoldenCase golden = LoadGolden(GetParam());
  for (const auto& verbs : CpuVerbs()) CheckTable(golden, *verbs);
}

class GoldenSwizzleTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenSwizzleTest, PermutesAsRecordedAndBack) {
  const GoldenCase golden = LoadGolden(GetParam());
  for (const auto& verbs : CpuVerbs()) CheckSwizzle(golden, *verbs);
}

class GoldenHadamardTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenHadamardTest, RoundsTheExactSumOnce) {
  const GoldenCase golden = LoadGolden(GetParam());
  for (const auto& verbs : CpuVerbs()) CheckHadamard(golden, *verbs);
}

std::string NameOf(const testing::TestParamInfo<std::filesystem::path>& info) {
  return info.param.stem().string();
}

INSTANTIATE_TEST_SUITE_P(Casts, GoldenTableTest, testing::ValuesIn(GoldenFiles("ct")), NameOf);
INSTANTIATE_TEST_SUITE_P(Transforms, GoldenHadamardTest, testing::ValuesIn(GoldenFiles("rht")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Scales, GoldenSwizzleTest, testing::ValuesIn(GoldenFiles("sw")), NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
