// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/kernel_table.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "narrowfloat/kernels/cpu/scheme_drivers.h"
#include "narrowfloat/schemes/mxfp4.h"
#include "narrowfloat/schemes/registry.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

TEST(KernelTableTest, TheReferenceIsLastAndNamesAreUnique) {
  const auto& tables = AvailableKernels();
  ASSERT_FALSE(tables.empty());
  EXPECT_EQ(tables.back(), &ScalarKernels());
  EXPECT_EQ(ScalarKernels().name, "scalar");
  for (std::size_t i = 0; i < tables.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(tables[i]->name, tables[j]->name);
  }
}

TEST(SchemeDriversTest, NoSchemeOfTheLibraryIsLeftToTheReference) {
  for (std::size_t i = 0; i < kSchemeCount; ++i) {
    const SchemeInfo& scheme = kSchemes[i];
    const auto& [rowwise, columnwise, both] = cpu::kSchemeDrivers[i].quantize;
    EXPECT_NE(rowwise, cpu::Driver::kReference) << scheme.name;
    EXPECT_NE(columnwise, cpu::Driver::kReference) << scheme.name;
    const bool joins =
        JoinsDirections(scheme.block, scheme.element_bits, scheme.layout.columnwise_transposed);
    EXPECT_EQ(both != cpu::Driver::kReference, joins) << scheme.name;
    EXPECT_TRUE(cpu::kSchemeDrivers[i].decodes[0] && cpu::kSchemeDrivers[i].decodes[1])
        << scheme.name;
  }
}

/// MXFP4 with one scale per tile of 32x32.
struct Mxfp4Tiles : Mxfp4Scheme {
  static constexpr BlockShape kBlock{32, 32};
  static constexpr SchemeLayout kLayout = [] {
    SchemeLayout layout = Mxfp4Scheme::kLayout;
    layout.lines_per_scale = kBlock.rows;
    return layout;
  }();
};

TEST(SchemeDriversTest, NoDriverDecodesColumnsOf4BitCodesThatShareScales) {
  EXPECT_TRUE(cpu::HasDecoder<Mxfp4Scheme>(Direction::kColumnwise));
  EXPECT_TRUE(cpu::HasDecoder<Mxfp4Tiles>(Direction::kRowwise));
  EXPECT_FALSE(cpu::HasDecoder<Mxfp4Tiles>(Direction::kColumnwise));
}

/// Prints ActiveKernels' name or error if NF_FORCE_BACKEND is `value`, and exits. Runs in a child
/// process. ActiveKernels chooses once per process: no other test of this program may call it.
void ExitWithActive(const std::string& value) {
  setenv("NF_FORCE_BACKEND", value.c_str(), 1);
  try {
    std::fprintf(stderr, "active %s", std::string(ActiveKernels().name).c_str());
  } catch (const Unsupported& error) {
    std::fprintf(stderr, "unsupported %s", error.what());
  }
  std::_Exit(0);
}

TEST(ForceBackendTest, PinsEachTableOfThisMachine) {
  for (const KernelTable* table : AvailableKernels()) {
    const std::string name(table->name);
    EXPECT_EXIT(ExitWithActive(name), testing::ExitedWithCode(0), "^active " + name + "$");
  }
}

TEST(ForceBackendTest, AnUnknownNameIsAnErrorThatSaysSo) {
  std::string names;
  for (const KernelTable* table : AvailableKernels())
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  EXPECT_EXIT(
      ExitWithActive("neon9"), testing::ExitedWithCode(0),
      "^unsupported NF_FORCE_BACKEND: 'neon9' cannot run here; this machine has: " + names + "$");
}

}  // namespace
}  // namespace narrowfloat
