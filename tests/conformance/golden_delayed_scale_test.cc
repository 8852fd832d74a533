// SPDX-License-Identifier: Apache-2.0
// Compares steps of delayed scaling with group dsu. TransformerEngine's variants disagree about a
// step whose newest amax is 0. The library follows the bulk kernel, which runs after the reduction.
#include <gtest/gtest.h>

#include <string>

#include "tests/conformance/golden_checks.h"

namespace narrowfloat::conformance {
namespace {

class GoldenDelayedScaleTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenDelayedScaleTest, EveryStepIsTheRecordedOne) {
  const GoldenCase golden = LoadGolden(GetParam());
  for (const auto& verbs : CpuVerbs()) CheckDelayedScale(golden, *verbs);
}

std::string NameOf(const testing::TestParamInfo<std::filesystem::path>& info) {
  return info.param.stem().string();
}

INSTANTIATE_TEST_SUITE_P(Recorded, GoldenDelayedScaleTest, testing::ValuesIn(GoldenFiles("dsu")),
                         NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
