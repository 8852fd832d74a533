// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/call_tensors.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "narrowfloat/ops/testing.h"
#include "narrowfloat/ops/view_checks.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat {
namespace {

TEST(CallTensorsTest, EmptyTensorsHaveNoExtentWhateverTheirOtherDimensionsAre) {
  std::byte memory[1];
  constexpr std::int64_t kLong = std::int64_t{1} << 62;
  for (const Shape& shape : {Shape{kLong, 4, 0, 1}, Shape{0, kLong, 4}}) {
    const TensorView view{memory, DType::kFloat32, shape, {}};
    const Extent extent = ExtentOf(view);
    EXPECT_EQ(extent.begin, extent.end);
  }
  const TensorView strided{memory, DType::kFloat32, {0, kLong, 4}, {1, 16, 4}};
  EXPECT_TRUE(IsContiguous(strided));
}

TEST(CallTensorsTest, FindsEveryOverlapOfWrittenMemory) {
  std::byte memory[40];
  const auto extent = [&](int begin, int end) { return Extent{memory + begin, memory + end}; };
  struct Case {
    Extent first, second;  // written
    Extent read;
    const char* message;
  };
  const Case cases[] = {
      {extent(0, 4), extent(4, 8), extent(8, 12), "no error"},
      {extent(8, 12), extent(0, 4), extent(4, 8), "no error"},
      {extent(0, 5), extent(4, 8), extent(8, 12), "test: first must not overlap second"},
      {extent(4, 8), extent(0, 5), extent(8, 12), "test: first must not overlap second"},
      {extent(0, 4), extent(4, 8), extent(7, 12), "test: second must not overlap read"},
      {extent(0, 4), extent(4, 8), extent(0, 1), "test: first must not overlap read"},
      {extent(2, 3), extent(20, 24), extent(0, 12), "test: first must not overlap read"},
      {extent(0, 30), extent(30, 31), extent(2, 3), "test: first must not overlap read"},
      {extent(5, 5), extent(4, 8), extent(6, 6), "no error"},  // empty extents overlap nothing
      {{}, {}, extent(0, 8), "no error"},
  };
  for (const Case& c : cases) {
    CallTensors call("test");
    call.Write({"first"}, c.first, Device::kCpu);
    call.Write({"second"}, c.second, Device::kCpu);
    const TensorView read{
        memory + (c.read.begin - memory), DType::kUInt8, {c.read.end - c.read.begin}};
    call.Read({"read"}, read);
    call.Read({"also read"}, read);  // tensors that are only read may overlap
    EXPECT_EQ(MessageOf([&] { call.CheckDisjoint(); }), c.message);
  }
}

}  // namespace
}  // namespace narrowfloat
