// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/owned_tensor.h"

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/tensor/huge_pages.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <utility>

#include "narrowfloat/tensor/testing.h"
#include "narrowfloat/types/types_testing.h"

namespace narrowfloat {
namespace {

static_assert(!std::is_copy_constructible_v<OwnedTensor>, "sharing is asked for by name");

std::uintptr_t AddressOf(const OwnedTensor& tensor) {
  return std::bit_cast<std::uintptr_t>(tensor.data());
}

TEST(OwnedTensorTest, BuffersBeginOnACacheLineAndLargeOnesOnAHugePage) {
  const OwnedTensor small(DType::kUInt8, {3, 5});
  EXPECT_EQ(AddressOf(small) % kLineBytes, 0u);
  EXPECT_EQ(small.Bytes(), 15u);
  const OwnedTensor large(DType::kFloat32, {1024, 512});
  EXPECT_EQ(large.Bytes(), kHugePage);
  EXPECT_EQ(AddressOf(large) % kHugePage, 0u);
}

TEST(OwnedTensorTest, NullAndEmptyDiffer) {
  const OwnedTensor null;
  const OwnedTensor empty(DType::kFloat16, {0, 4});
  EXPECT_FALSE(null);
  EXPECT_EQ(null.ConstView().data, nullptr);
  EXPECT_TRUE(empty);
  EXPECT_EQ(empty.Bytes(), 0u);
  EXPECT_FALSE(null.Share());
  EXPECT_FALSE(null.Clone());
}

TEST(OwnedTensorTest, MovingLeavesNull) {
  OwnedTensor from(DType::kUInt8, {4});
  const std::byte* const data = from.data();
  const OwnedTensor to = std::move(from);
  EXPECT_EQ(to.data(), data);
  EXPECT_FALSE(from);  // NOLINT(bugprone-use-after-move): tests the moved-from tensor
  EXPECT_EQ(from.Bytes(), 0u);
}

TEST(OwnedTensorTest, ASharedHandleSeesWritesAndOutlivesTheFirst) {
  OwnedTensor first(DType::kUInt8, {2, 3});
  first.FillZero();
  OwnedTensor second = first.ShareAs({6});
  EXPECT_TRUE(second.SharesMemoryWith(first));
  first.data()[5] = std::byte{7};
  first = {};
  EXPECT_EQ(second.shape(), (Shape{6}));
  EXPECT_EQ(second.data()[5], std::byte{7});
}

TEST(OwnedTensorTest, ACloneHasItsOwnMemory) {
  OwnedTensor first(DType::kUInt8, {2});
  first.FillZero();
  const OwnedTensor clone = first.Clone();
  first.data()[0] = std::byte{1};
  EXPECT_FALSE(clone.SharesMemoryWith(first));
  EXPECT_EQ(clone.data()[0], std::byte{0});
}

TEST(OwnedTensorTest, AnotherElementCountIsRefused) {
  const OwnedTensor tensor(DType::kUInt8, {2, 3});
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { (void)tensor.ShareAs({7}); }),
            "share: the new shape must have 6 elements, got 7 in place of 2x3");
  EXPECT_EQ(MessageOf<InvalidArgument>([] { OwnedTensor(DType::kUInt8, {-1}); }),
            "shape: dimensions must not be negative, got -1");
}

}  // namespace
}  // namespace narrowfloat
