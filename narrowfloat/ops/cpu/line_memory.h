// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "narrowfloat/kernels/geometry.h"

namespace narrowfloat {

/// Memory aligned to a cache line and not initialized.
class LineMemory {
 public:
  LineMemory() = default;
  explicit LineMemory(std::size_t bytes)
      : data_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kLineBytes}))) {}
  std::byte* data() const { return data_.get(); }

 private:
  struct Delete {
    void operator()(std::byte* data) const {
      ::operator delete (data, std::align_val_t{kLineBytes});
    }
  };
  std::unique_ptr<std::byte, Delete> data_;
};

}  // namespace narrowfloat
