// SPDX-License-Identifier: Apache-2.0
// Compares every byte of quantized tensors on every backend with TransformerEngine's records:
// groups cs, ds, mx, bs and nv.
#include <gtest/gtest.h>

#include <string>

#include "tests/conformance/golden_checks.h"

namespace narrowfloat::conformance {
namespace {

/// Compares the layout that GEMMs read, padding included. It is recorded if all references agree.
TEST(GoldenBlockTest, ScalesLieAsGemmsReadThem) {
  for (const auto& verbs : CpuVerbs()) CheckScalesForGemms(*verbs);
}

class GoldenQuantizeTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenQuantizeTest, EveryBackendGivesTheRecordedBytes) {
  const GoldenCase golden = LoadGolden(GetParam());
  for (const auto& verbs : CpuVerbs()) CheckQuantize(golden, *verbs);
}

TEST_P(GoldenQuantizeTest, DbiasIsTheRecordedOne) {
  const GoldenCase golden = LoadGolden(GetParam());
  for (const auto& verbs : CpuVerbs()) CheckDbias(golden, *verbs);
}

std::string NameOf(const testing::TestParamInfo<std::filesystem::path>& info) {
  return info.param.stem().string();
}

INSTANTIATE_TEST_SUITE_P(CurrentScaling, GoldenQuantizeTest, testing::ValuesIn(GoldenFiles("cs")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(DelayedScaling, GoldenQuantizeTest, testing::ValuesIn(GoldenFiles("ds")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Mxfp8, GoldenQuantizeTest, testing::ValuesIn(GoldenFiles("mx")), NameOf);
INSTANTIATE_TEST_SUITE_P(Blocks, GoldenQuantizeTest, testing::ValuesIn(GoldenFiles("bs")), NameOf);
INSTANTIATE_TEST_SUITE_P(Nvfp4, GoldenQuantizeTest, testing::ValuesIn(GoldenNvfp4Files()), NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
