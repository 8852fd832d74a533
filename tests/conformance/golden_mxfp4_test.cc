// SPDX-License-Identifier: Apache-2.0
// Compares rowwise MXFP4 with TransformerEngine's records. Its reference has no columnwise MXFP4.
#include <gtest/gtest.h>

#include <string>

#include "tests/conformance/golden_checks.h"

namespace narrowfloat::conformance {
namespace {

class GoldenMxfp4Test : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenMxfp4Test, GivesTheRecordedBytesAndValues) {
  const GoldenCase golden = LoadGolden(GetParam());
  for (const auto& verbs : CpuVerbs()) CheckMxfp4(golden, *verbs);
}

std::string NameOf(const testing::TestParamInfo<std::filesystem::path>& info) {
  return info.param.stem().string();
}

INSTANTIATE_TEST_SUITE_P(Recorded, GoldenMxfp4Test, testing::ValuesIn(GoldenFiles("mxfp4")),
                         NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
