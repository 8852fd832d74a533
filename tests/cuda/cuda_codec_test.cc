// SPDX-License-Identifier: Apache-2.0
// Compares conversions in device code with the reference: all 2^32 floats and all codes on a
// device. In the emulation a float takes 100 times as long, so only every 4099th float is an input.
// 4099 is a prime, so that all bits vary.
#include <gtest/gtest.h>

#include "narrowfloat/kernels/cuda/memory.h"
#include "narrowfloat/tensor/error.h"
#include "tests/cuda/codec_kernels.h"

namespace narrowfloat::cuda {
namespace {

#if defined(NF_CUDA_EMULATED)
constexpr std::uint64_t kStep = 4099;
#else
constexpr std::uint64_t kStep = 1;
#endif

TEST(CudaCodecTest, EveryConversionIsItsDefinition) {
  try {
    RequireDevice();
  } catch (const DeviceError& missing) {
    GTEST_SKIP() << missing.what();
  }
  for (const Comparison& comparison : CompareConversions(kStep)) {
    EXPECT_GT(comparison.inputs, 0u);
    EXPECT_EQ(comparison.differences, 0u)
        << comparison.name << ": of " << comparison.inputs << " inputs, one is pattern " << std::hex
        << comparison.example;
  }
}

}  // namespace
}  // namespace narrowfloat::cuda
