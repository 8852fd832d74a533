// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "narrowfloat/tensor/dtype.h"
#include "narrowfloat/tensor/plan.h"
#include "narrowfloat/tensor/quant_spec.h"
#include "narrowfloat/tensor/shape.h"

namespace narrowfloat {

enum class Device : std::uint8_t { kCpu, kCuda };

/// A tensor in memory that the view does not own. `strides` are in bytes, and arbitrary for all but
/// the last dimension, whose items must be adjacent; empty means C-contiguous. No alignment is
/// required.
template <class Byte>
struct BasicTensorView {
  Byte* data = nullptr;
  DType dtype = DType::kUInt8;
  Shape shape;
  std::vector<std::ptrdiff_t> strides{};
  Device device = Device::kCpu;

  /// Converts a writable view to a read-only one, never back.
  operator BasicTensorView<const Byte>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<Byte>) {
    return {data, dtype, shape, strides, device};
  }
};
using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

/// The buffers of a quantized tensor, by role. An absent buffer has no data and the default shape.
/// Two roles may share memory: per-tensor FP8 keeps one scale_inv for both directions.
template <class Byte>
struct BasicQuantizedView {
  QuantSpec spec;
  Shape shape;  // of the unquantized tensor
  std::array<BasicTensorView<Byte>, kRoleCount> buffers;

  BasicTensorView<Byte>& operator[](Role role) { return buffers[static_cast<std::size_t>(role)]; }
  const BasicTensorView<Byte>& operator[](Role role) const {
    return buffers[static_cast<std::size_t>(role)];
  }

  operator BasicQuantizedView<const Byte>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<Byte>) {
    BasicQuantizedView<const Byte> view{spec, shape, {}};
    for (std::size_t i = 0; i < kRoleCount; ++i) view.buffers[i] = buffers[i];
    return view;
  }
};
using QuantizedView = BasicQuantizedView<std::byte>;
using ConstQuantizedView = BasicQuantizedView<const std::byte>;

}  // namespace narrowfloat
