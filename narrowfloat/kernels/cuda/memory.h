// SPDX-License-Identifier: Apache-2.0
// CUDA's runtime as plain C++: memory and streams. All functions may throw DeviceError.
#pragma once

#include <cstddef>

namespace narrowfloat::cuda {

/// A cudaStream_t; null is the default stream.
using Stream = void*;

/// Checks that there is a device. Errors: DeviceError with the driver's reason.
void RequireDevice();

/// Copies between any two addresses in host or device memory, in the order of the stream.
void Copy(void* to, const void* from, std::size_t bytes, Stream stream);

/// Waits for all work of a stream.
void Synchronize(Stream stream);

/// Device memory, allocated and freed in the order of a stream.
class Memory {
 public:
  Memory(std::size_t bytes, Stream stream);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  Stream stream_;
  bool is_of_pool_ = false;
};

}  // namespace narrowfloat::cuda
