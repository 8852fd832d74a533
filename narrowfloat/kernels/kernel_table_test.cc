// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/kernel_table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "narrowfloat/kernels/cpu/bodies.h"
#include "narrowfloat/kernels/cpu/micro_kernels.h"
#include "narrowfloat/kernels/cpu/tables.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

TEST(KernelTableTest, EveryTableIsComplete) {
  for (const KernelTable* table : AvailableKernels()) {
    for (std::size_t type = 0; type < kFloatTypeCount; ++type) {
      EXPECT_NE(table->amax[type], nullptr) << table->name;
      EXPECT_NE(table->column_sum[type], nullptr) << table->name;
      EXPECT_NE(table->amax_sum[type], nullptr) << table->name;
      EXPECT_NE(table->column_amax[type], nullptr) << table->name;
      EXPECT_NE(table->hadamard[type], nullptr) << table->name;
      for (std::size_t scheme = 0; scheme < kSchemeCount; ++scheme) {
        for (std::size_t direction = 0; direction < kDirectionCount; ++direction)
          EXPECT_NE(table->quantize[scheme][direction][type], nullptr)
              << table->name << " " << kSchemes[scheme].name;
        for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise})
          EXPECT_NE(table->dequantize[scheme][static_cast<std::size_t>(direction)][type], nullptr)
              << table->name << " " << kSchemes[scheme].name;
      }
    }
  }
}

TEST(KernelTableTest, TheOracleIsLastAndNamesAreUnique) {
  const auto& tables = AvailableKernels();
  ASSERT_FALSE(tables.empty());
  EXPECT_EQ(tables.back(), &ScalarKernels());
  EXPECT_EQ(ScalarKernels().name, "scalar");
  for (std::size_t i = 0; i < tables.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(tables[i]->name, tables[j]->name);
  }
}

TEST(KernelTableTest, TheListIsTheSameEachTime) {
  EXPECT_EQ(&AvailableKernels(), &AvailableKernels());
}

template <class... S>
constexpr std::array<std::array<cpu::Body, kDirectionCount>, kSchemeCount> Bodies(TypeList<S...>) {
  return {{{cpu::BodyOf<S>(Direction::kRowwise), cpu::BodyOf<S>(Direction::kColumnwise),
            cpu::BodyOf<S>(Direction::kBoth)}...}};
}

TEST(BodiesTest, EachFillsItsOwnSlotsAndNoOther) {
  constexpr auto kBodies = Bodies(AllSchemes{});
  for (const cpu::CpuTarget& target : cpu::AvailableTargets()) {
    const cpu::TargetParts parts = cpu::PartsOf(target.index);
    if (parts.micro == nullptr) continue;  // the baseline has no bodies
    for (std::size_t scheme = 0; scheme < kSchemeCount; ++scheme) {
      for (std::size_t direction = 0; direction < kDirectionCount; ++direction) {
        for (std::size_t type = 0; type < kFloatTypeCount; ++type) {
          const cpu::Body body = kBodies[scheme][direction];
          const auto what =
              fmt::format("{} {} direction {}", target.name, kSchemes[scheme].name, direction);
          EXPECT_EQ(parts.quantize[scheme][direction][type] != nullptr,
                    body != cpu::Body::kReference)
              << what;
        }
      }
    }
  }
}

TEST(BodiesTest, NoSchemeOfTheLibraryIsLeftToTheReference) {
  constexpr auto kBodies = Bodies(AllSchemes{});
  for (std::size_t i = 0; i < kSchemeCount; ++i) {
    const SchemeInfo& scheme = kSchemes[i];
    const auto& [rowwise, columnwise, both] = kBodies[i];
    EXPECT_NE(rowwise, cpu::Body::kReference) << scheme.name;
    EXPECT_NE(columnwise, cpu::Body::kReference) << scheme.name;
    const bool joins =
        JoinsDirections(scheme.block, scheme.element_bits, scheme.layout.columnwise_transposed);
    EXPECT_EQ(both != cpu::Body::kReference, joins) << scheme.name;
  }
}

/// Returns ActiveKernels' name or error when NF_FORCE_BACKEND is `value`. Runs in a child process:
/// the choice is made once per process, so no other test of this program may call ActiveKernels.
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
