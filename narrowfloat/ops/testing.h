// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat {

using Floats = std::vector<float>;

inline TensorView ViewOf(Floats& items, Shape shape) {
  return {reinterpret_cast<std::byte*>(items.data()), DType::kFloat32, std::move(shape), {}, {}};
}

/// A quantized tensor and its memory.
struct Quantized {
  Quantized(const QuantSpec& spec, const Shape& shape, Floats items) {
    view = BindBuffers<QuantizedView>(spec, shape, [&](const BufferPlan& buffer) {
      auto& bytes = memory[static_cast<std::size_t>(buffer.storage)];
      if (buffer.storage == buffer.role) bytes.resize(BufferBytes(buffer));
      return bytes.data();
    });
    Quantize(ViewOf(items, shape), view);
  }
  Quantized(std::string_view spec, const Shape& shape, Floats items)
      : Quantized(ParseQuantSpec(spec), shape, std::move(items)) {}
  Quantized(const Quantized&) = delete;
  Quantized& operator=(const Quantized&) = delete;

  std::vector<std::byte>& Bytes(Role role) { return memory[static_cast<std::size_t>(role)]; }

  QuantizedView view;
  std::array<std::vector<std::byte>, kRoleCount> memory;
};

}  // namespace narrowfloat
