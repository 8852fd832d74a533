// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace narrowfloat::tools {

/// Uninitialized memory that grows on demand and is reused for each tensor.
class ByteBuffer {
 public:
  /// Returns the first `bytes` bytes; earlier content may be lost.
  std::span<std::byte> Take(std::uint64_t bytes) {
    if (bytes > capacity_) {
      memory_.reset();  // freed first, so that both are never allocated at once
      capacity_ = 0;
      memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      capacity_ = bytes;
    }
    return {memory_.get(), bytes};
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::uint64_t capacity_ = 0;
};

}  // namespace narrowfloat::tools
