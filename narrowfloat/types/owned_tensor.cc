// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/owned_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/huge_pages.h"

namespace narrowfloat {
namespace {

std::shared_ptr<std::byte> Allocate(std::size_t bytes) {
  const bool huge = bytes >= kHugePage;
  void* memory = nullptr;
  // An empty tensor has an address too, which distinguishes it from null.
  if (posix_memalign(&memory, huge ? kHugePage : kLineBytes, std::max<std::size_t>(bytes, 1)) !=
      0) {
    throw std::bad_alloc();
  }
  auto* data = static_cast<std::byte*>(memory);
  AdviseHugePages(data, bytes);
  return {data, [](std::byte* pointer) { std::free(pointer); }};
}

std::size_t BytesOf(DType dtype, const Shape& shape) {
  return FlattenShape(shape).Size() * ItemSize(dtype);
}

}  // namespace

OwnedTensor::OwnedTensor(DType dtype, Shape shape)
    : dtype_(dtype), shape_(std::move(shape)), memory_(Allocate(BytesOf(dtype_, shape_))) {}

OwnedTensor::OwnedTensor(DType dtype, Shape shape, std::shared_ptr<std::byte> memory)
    : dtype_(dtype), shape_(std::move(shape)), memory_(std::move(memory)) {}

OwnedTensor OwnedTensor::Share() const {
  return OwnedTensor(dtype_, shape_, memory_);
}

OwnedTensor OwnedTensor::ShareAs(Shape shape) const {
  if (FlattenShape(shape).Size() != FlattenShape(shape_).Size()) {
    throw InvalidArgument(
        fmt::format("share: the new shape must have {} elements, got {} in place of {}",
                    FlattenShape(shape_).Size(), ShapeText(shape), ShapeText(shape_)));
  }
  return OwnedTensor(dtype_, std::move(shape), memory_);
}

OwnedTensor OwnedTensor::Clone() const {
  if (memory_ == nullptr) return {};
  OwnedTensor clone(dtype_, shape_);
  std::memcpy(clone.data(), data(), Bytes());
  return clone;
}

std::size_t OwnedTensor::Bytes() const {
  return memory_ == nullptr ? 0 : BytesOf(dtype_, shape_);
}

void OwnedTensor::FillZero() {
  if (memory_ != nullptr) std::memset(data(), 0, Bytes());
}

TensorView OwnedTensor::View() {
  if (memory_ == nullptr) return {};
  return {data(), dtype_, shape_, {}, Device::kCpu};
}

ConstTensorView OwnedTensor::ConstView() const {
  if (memory_ == nullptr) return {};
  return {data(), dtype_, shape_, {}, Device::kCpu};
}

}  // namespace narrowfloat
