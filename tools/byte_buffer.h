// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace narrowfloat::tools {

/// Memory that is used again for tensor after tensor: it grows and is never filled.
class ByteBuffer {
 public:
  /// Returns the first `bytes` bytes; earlier content may be lost.
  std::span<std::byte> Take(std::uint64_t bytes) {
    if (bytes > capacity_) {
      memory_.reset();  // the old one goes before the new one comes
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
