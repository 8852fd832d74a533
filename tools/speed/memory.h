// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "narrowfloat/tensor/view.h"

namespace narrowfloat::speed {

/// Bytes on huge pages, aligned to them and written once in advance: the page faults of first
/// writes would take longer than the kernel.
class HugeBuffer {
 public:
  explicit HugeBuffer(std::size_t bytes);
  ~HugeBuffer();
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

/// Distribution of the input. It affects the speed of kernels that branch on data.
enum class Data { kGaussian, kWide, kHalfZero };

/// Input and output memory for every workload of one shape and of some float types.
class Memory {
 public:
  static constexpr std::size_t kLargestOffset = 64;

  /// Allocates and fills the memory. Requires: `types` begins with the widest type.
  Memory(Shape shape, Data data,
         std::vector<DType> types = {DType::kFloat32, DType::kFloat16, DType::kBFloat16});

  const Shape& shape() const { return shape_; }
  const std::vector<DType>& types() const { return types_; }
  /// Returns views that begin `past_line` bytes, at most kLargestOffset, after the start of a cache
  /// line.
  ConstTensorView Input(DType dtype, std::size_t past_line = 0) const;
  TensorView Output(DType dtype, std::size_t past_line = 0) const;
  QuantizedView Quantized(const QuantSpec& spec, std::size_t past_line = 0) const;
  /// Returns memory for a stream, as large as the largest input and output.
  std::byte* StreamIn() const { return InputBuffer(types_.front()).data(); }
  std::byte* StreamOut() const { return output_.data(); }

 private:
  const HugeBuffer& InputBuffer(DType dtype) const;

  Shape shape_;
  std::vector<DType> types_;
  std::array<std::optional<HugeBuffer>, kFloatTypeCount> inputs_;
  HugeBuffer output_, codes_[2], scales_;
};

}  // namespace narrowfloat::speed
