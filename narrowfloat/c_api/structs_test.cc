// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/c_api/structs.h"
#include "narrowfloat/tensor/testing.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace narrowfloat::c_api {
namespace {

/// A struct as its first version had it, and as a later version has it.
struct First {
  std::size_t struct_size;
  std::int64_t value;
};
struct Later {
  std::size_t struct_size;
  std::int64_t value, added;
};

}  // namespace

template <>
inline constexpr std::size_t kFirstSize<Later> = sizeof(First);

namespace {

TEST(StructsTest, AFieldThatTheCallerDoesNotHaveIsZero) {
  // The bytes behind each struct are not zero, and the second one begins right behind the first.
  const std::array<First, 3> given = {{{sizeof(First), 1}, {sizeof(First), 2}, {7, 7}}};
  const auto* first = reinterpret_cast<const Later*>(given.data());
  const std::size_t size = CallerSize("test", "the struct", first);
  ASSERT_EQ(size, sizeof(First));
  for (std::size_t i = 0; i < 2; ++i) {
    const Later read = ReadStruct("test", "the struct", first, size, i);
    EXPECT_EQ(read.value, static_cast<std::int64_t>(i + 1));
    EXPECT_EQ(read.added, 0);
  }
}

TEST(StructsTest, NothingIsStoredBehindTheCallersStruct) {
  std::array<First, 2> out = {{{0, 0}, {7, 7}}};
  StoreStruct(Later{sizeof(First), 1, 2}, sizeof(First), reinterpret_cast<std::byte*>(&out));
  EXPECT_EQ(out[0].value, 1);
  EXPECT_EQ(out[1].struct_size, 7u);
}

TEST(StructsTest, AStructHasAtLeastTheFieldsOfItsFirstVersion) {
  const First given{sizeof(First) - 1, 0};
  EXPECT_EQ(MessageOf<InvalidArgument>(
                [&] { CallerSize("test", "the struct", reinterpret_cast<const Later*>(&given)); }),
            "test: struct_size of the struct must be from 16 to 4096, got 15");
}

TEST(StructsTest, TheFirstSizesStay) {
  EXPECT_EQ(kFirstSize<nf_tensor>, 40u);
  EXPECT_EQ(kFirstSize<nf_buffer_plan>, 544u);
  EXPECT_EQ(kFirstSize<nf_buffer>, 32u);
  EXPECT_EQ(kFirstSize<nf_execution>, 24u);
}

}  // namespace
}  // namespace narrowfloat::c_api
