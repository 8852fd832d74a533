// SPDX-License-Identifier: Apache-2.0
// Compares verbs on device memory with TransformerEngine's records: all groups of the CPU's tests
// except products.
#include <gtest/gtest.h>
#include <filesystem>

#include <ostream>
#include <string>
#include <vector>

#include "tests/conformance/golden_checks.h"
#include "tests/cuda/device_tensors.h"

namespace narrowfloat::conformance {
namespace {

using Check = void (*)(const GoldenCase&, const Verbs&);

struct Record {
  std::filesystem::path file;
  Check check;
};

void PrintTo(const Record& record, std::ostream* out) {
  *out << record.file.filename().string();
}

class CudaGoldenTest : public DeviceTestWith<Record> {};

TEST_P(CudaGoldenTest, GivesTheRecordedBytes) {
  const GoldenCase golden = LoadGolden(GetParam().file);
  GetParam().check(golden, DeviceVerbs());
}

class CudaGoldenBlockTest : public DeviceTest {};

TEST_F(CudaGoldenBlockTest, ScalesLieAsGemmsReadThem) {
  CheckScalesForGemms(DeviceVerbs());
}

std::vector<Record> Records(const std::vector<std::filesystem::path>& files, Check check) {
  std::vector<Record> records;
  for (const std::filesystem::path& file : files) records.push_back({file, check});
  return records;
}

std::vector<Record> RecordsOfGroups(std::initializer_list<const char*> groups, Check check) {
  std::vector<Record> records;
  for (const char* group : groups) {
    for (const Record& record : Records(GoldenFiles(group), check)) records.push_back(record);
  }
  return records;
}

std::string NameOf(const testing::TestParamInfo<Record>& info) {
  return info.param.file.parent_path().filename().string() + "_" + info.param.file.stem().string();
}

INSTANTIATE_TEST_SUITE_P(Quantize, CudaGoldenTest,
                         testing::ValuesIn(RecordsOfGroups({"cs", "ds", "mx", "bs"},
                                                           CheckQuantize)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(QuantizeNvfp4, CudaGoldenTest,
                         testing::ValuesIn(Records(GoldenNvfp4Files(), CheckQuantize)), NameOf);
INSTANTIATE_TEST_SUITE_P(Dbias, CudaGoldenTest,
                         testing::ValuesIn(RecordsOfGroups({"cs", "ds", "mx", "bs"}, CheckDbias)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(DbiasNvfp4, CudaGoldenTest,
                         testing::ValuesIn(Records(GoldenNvfp4Files(), CheckDbias)), NameOf);
INSTANTIATE_TEST_SUITE_P(Dequantize, CudaGoldenTest,
                         testing::ValuesIn(RecordsOfGroups({"dq", "cs", "ds", "mx", "bs", "nv"},
                                                           CheckDequantize)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Mxfp4, CudaGoldenTest,
                         testing::ValuesIn(RecordsOfGroups({"mxfp4"}, CheckMxfp4)), NameOf);
INSTANTIATE_TEST_SUITE_P(Tables, CudaGoldenTest,
                         testing::ValuesIn(RecordsOfGroups({"ct"}, CheckTable)), NameOf);
INSTANTIATE_TEST_SUITE_P(Swizzle, CudaGoldenTest,
                         testing::ValuesIn(RecordsOfGroups({"sw"}, CheckSwizzle)), NameOf);
INSTANTIATE_TEST_SUITE_P(Hadamard, CudaGoldenTest,
                         testing::ValuesIn(RecordsOfGroups({"rht"}, CheckHadamard)), NameOf);
INSTANTIATE_TEST_SUITE_P(DelayedScale, CudaGoldenTest,
                         testing::ValuesIn(RecordsOfGroups({"dsu"}, CheckDelayedScale)), NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
