// SPDX-License-Identifier: Apache-2.0
#include "tools/speed/memory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <span>
#include <utility>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/huge_pages.h"

namespace narrowfloat::speed {
namespace {

// Random values are repeated. Their number is a prime, so that they never align with rows.
constexpr std::size_t kDrawn = 1000003;

std::vector<float> Draw(Data data, std::size_t count) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-40, 40);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
    if (data == Data::kWide) value = std::ldexp(value, exponent(random));
    if (data == Data::kHalfZero && random() % 2 == 0) value = 0.0f;
  }
  return values;
}

/// Stores `value` as a float of type `dtype`.
void StoreAs(DType dtype, float value, std::byte* to) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == DType::kFloat16) bits = Encode<Float16, Overflow::kInfinity>(value);
  if (dtype == DType::kBFloat16) bits = Encode<BFloat16, Overflow::kInfinity>(value);
  std::memcpy(to, &bits, ItemSize(dtype));
}

/// Copies `pattern` until `to` is full.
void Repeat(std::span<const std::byte> pattern, std::span<std::byte> to) {
  while (!to.empty()) {
    const std::size_t bytes = std::min(pattern.size(), to.size());
    std::memcpy(to.data(), pattern.data(), bytes);
    to = to.subspan(bytes);
  }
}

std::size_t CodeBytes(const Shape& shape) {
  return FlattenShape(shape).Size() + Memory::kLargestOffset;
}

std::size_t WidestBytes(const Shape& shape, const std::vector<DType>& types) {
  return FlattenShape(shape).Size() * ItemSize(types.front()) + Memory::kLargestOffset;
}

}  // namespace

HugeBuffer::HugeBuffer(std::size_t bytes) {
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  data_ = static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded));
  if (data_ == nullptr) throw std::bad_alloc();
  AdviseHugePages(data_, rounded);
  std::memset(data_, 0x38, rounded);
}

HugeBuffer::~HugeBuffer() {
  std::free(data_);
}

Memory::Memory(Shape shape, Data data, std::vector<DType> types)
    : shape_(std::move(shape)),
      types_(std::move(types)),
      output_(WidestBytes(shape_, types_)),
      codes_{HugeBuffer(CodeBytes(shape_)), HugeBuffer(CodeBytes(shape_))},
      scales_(CodeBytes(shape_)) {
  const std::size_t elements = FlattenShape(shape_).Size();
  const std::vector<float> values = Draw(data, std::min(elements, kDrawn));
  std::vector<std::byte> pattern;
  for (const DType dtype : types_) {
    const std::size_t item = ItemSize(dtype);
    pattern.resize(values.size() * item);
    for (std::size_t i = 0; i < values.size(); ++i)
      StoreAs(dtype, values[i], pattern.data() + i * item);
    const std::size_t bytes = elements * item + kLargestOffset;
    HugeBuffer& input = inputs_[static_cast<std::size_t>(dtype)].emplace(bytes);
    Repeat(pattern, {input.data(), bytes});
  }
}

const HugeBuffer& Memory::InputBuffer(DType dtype) const {
  return inputs_[static_cast<std::size_t>(dtype)].value();
}

ConstTensorView Memory::Input(DType dtype, std::size_t past_line) const {
  return {InputBuffer(dtype).data() + past_line, dtype, shape_, {}, Device::kCpu};
}

TensorView Memory::Output(DType dtype, std::size_t past_line) const {
  return {output_.data() + past_line, dtype, shape_, {}, Device::kCpu};
}

QuantizedView Memory::Quantized(const QuantSpec& spec, std::size_t past_line) const {
  std::byte* const scales = scales_.data() + past_line;
  std::size_t used = 0;
  return BindBuffers<QuantizedView>(spec, shape_, [&](const BufferPlan& buffer) {
    if (buffer.role == Role::kRowwiseData) return codes_[0].data() + past_line;
    if (buffer.role == Role::kColumnwiseData) return codes_[1].data() + past_line;
    if (buffer.storage != buffer.role) return scales;  // shares the first scale
    std::byte* data = scales + used;
    used += RoundUp(BufferBytes(buffer), kLineBytes);
    return data;
  });
}

}  // namespace narrowfloat::speed
