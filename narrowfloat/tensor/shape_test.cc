// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/shape.h"

#include <gtest/gtest.h>

#include <limits>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

std::string ErrorOf(const Shape& shape) {
  return MessageOf<InvalidArgument>([&] { static_cast<void>(FlattenShape(shape)); });
}

TEST(FlattenShapeTest, TheLastDimensionIsTheColumns) {
  EXPECT_EQ(FlattenShape({2, 3, 20}), (MatrixShape{6, 20}));
  EXPECT_EQ(FlattenShape({7, 5}), (MatrixShape{7, 5}));
  EXPECT_EQ(FlattenShape({9}), (MatrixShape{1, 9}));
  EXPECT_EQ(FlattenShape({}), (MatrixShape{1, 1})) << "a scalar is one item";
}

TEST(FlattenShapeTest, EmptyTensorsKeepTheDimensionThatIsNotEmpty) {
  EXPECT_EQ(FlattenShape({0, 16}), (MatrixShape{0, 16}));
  EXPECT_EQ(FlattenShape({16, 0}), (MatrixShape{16, 0}));
  EXPECT_EQ(FlattenShape({2, 0, 5}), (MatrixShape{0, 5}));
  EXPECT_EQ(FlattenShape({2, 3, 0}), (MatrixShape{6, 0}));
  EXPECT_EQ(FlattenShape({0}), (MatrixShape{1, 0}));
  EXPECT_EQ(FlattenShape({0, kHuge}), (MatrixShape{0, static_cast<std::size_t>(kHuge)}))
      << "an empty tensor needs no memory, however long its other side";
}

TEST(FlattenShapeTest, ReportsWhatIsWrong) {
  EXPECT_EQ(ErrorOf({2, -1, 3}), "shape: dimensions must not be negative, got 2x-1x3");
  EXPECT_EQ(ErrorOf({0, -1}), "shape: dimensions must not be negative, got 0x-1");
  EXPECT_EQ(ErrorOf({kHuge, 2}),
            "shape: 9223372036854775807x2 has more elements than memory can address");
  EXPECT_EQ(ErrorOf({std::int64_t{1} << 31, std::int64_t{1} << 31}),
            "shape: 2147483648x2147483648 has more elements than memory can address");
  EXPECT_EQ(ErrorOf({kHuge, kHuge, 0}),
            "shape: 9223372036854775807x9223372036854775807x0 has more rows than memory can "
            "address");
  EXPECT_EQ(ErrorOf({std::int64_t{1} << 30, std::int64_t{1} << 29}), "no error");
}

TEST(ShapeTextTest, ReadsAsPeopleWriteIt) {
  EXPECT_EQ(ShapeText({2, 3, 20}), "2x3x20");
  EXPECT_EQ(ShapeText({5}), "5");
  EXPECT_EQ(ShapeText({}), "scalar");
}

TEST(RoundUpTest, KeepsMultiples) {
  EXPECT_EQ(CeilDiv(0, 32), 0u);
  EXPECT_EQ(CeilDiv(32, 32), 1u);
  EXPECT_EQ(CeilDiv(33, 32), 2u);
  EXPECT_EQ(RoundUp(0, 128), 0u);
  EXPECT_EQ(RoundUp(1, 128), 128u);
  EXPECT_EQ(RoundUp(128, 128), 128u);
}

}  // namespace
}  // namespace narrowfloat
