// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "narrowfloat/io/convention.h"
#include "narrowfloat/ops/quantize.h"
#include "tools/byte_buffer.h"

namespace narrowfloat::tools {

/// Memory for one quantized tensor at a time.
class ScratchTensor {
 public:
  /// Returns a view of memory for the buffers of this plan. Earlier content is lost.
  QuantizedView Bind(const QuantSpec& spec, const Shape& shape);

  /// Returns the bytes of each of io::StoredBuffers.
  const std::vector<std::span<const std::byte>>& buffers() const { return buffers_; }

 private:
  ByteBuffer memory_;
  std::vector<std::span<const std::byte>> buffers_;
};

}  // namespace narrowfloat::tools
