// SPDX-License-Identifier: Apache-2.0
// Copies of test tensors in device memory: on the GPU, or on the emulation of tests/cuda/emulation.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "narrowfloat/kernels/cuda/memory.h"
#include "tests/conformance/tensors.h"
#include "tests/conformance/verbs.h"

namespace narrowfloat::conformance {

/// Registers the backend of CUDA devices in the emulation. Returns the error if no device exists,
/// else "".
std::string UseDevice();

/// Returns true for a device, false for the emulation, which is too slow for large tests.
bool IsRealDevice();

/// A test that needs a device, and is skipped without one.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = UseDevice(); !reason.empty()) GTEST_SKIP() << reason;
  }
};
template <class T>
class DeviceTestWith : public DeviceTest, public testing::WithParamInterface<T> {};

/// A copy of host bytes in device memory, at the host's distance from a cache line's start. On a
/// device guard bytes enclose it. In the emulation the allocation ends with it: reads fail too.
class DeviceBytes {
 public:
  DeviceBytes(const std::byte* host, std::size_t bytes);
  std::byte* data() const { return memory_.data() + lead_; }
  /// Copies the bytes to the host. Fails the test if a guard byte has changed.
  void CopyTo(std::byte* host) const;

 private:
  std::size_t lead_, bytes_;
  cuda::Memory memory_;
};

/// A number in device memory, for Execution.
template <class T>
class DeviceValue {
 public:
  explicit DeviceValue(T value) : bytes_(AsBytes(value).data(), sizeof(T)) {}
  const T* Pointer() const { return reinterpret_cast<const T*>(bytes_.data()); }

 private:
  struct alignas(64) Aligned {
    std::array<std::byte, sizeof(T)> bytes;
    const std::byte* data() const { return bytes.data(); }
  };
  static Aligned AsBytes(T value) {
    Aligned aligned;
    std::memcpy(aligned.bytes.data(), &value, sizeof value);
    return aligned;
  }

  DeviceBytes bytes_;
};

/// A tensor in device memory, with the strides and the alignment of the host's.
class DeviceTensor {
 public:
  explicit DeviceTensor(const ConstTensorView& host);
  TensorView view;
  /// Copies the items and the bytes between them. Requires: `host` has the same strides.
  void CopyTo(const TensorView& host) const;

 private:
  std::ptrdiff_t offset_;  // from the lowest byte to the first item
  DeviceBytes bytes_;
};

/// The buffers of a quantized tensor in device memory.
class DeviceBuffers {
 public:
  explicit DeviceBuffers(const QuantizedBuffers& host);
  QuantizedView view;
  void CopyTo(QuantizedBuffers& host) const;

 private:
  std::array<std::unique_ptr<DeviceBytes>, kRoleCount> memory_;
};

/// Returns verbs that copy tensors to device memory and call the device's backend.
const Verbs& DeviceVerbs();

}  // namespace narrowfloat::conformance
