// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/numerics/philox.h"

namespace narrowfloat {

/// Seed and offset of the random bits. An element's bits depend on its position alone, not on the
/// thread or the order of computation.
struct RandomState {
  std::uint64_t seed = 0, offset = 0;
};

inline constexpr std::size_t kRandomRun = 16;  // elements per Philox call, one byte each
inline constexpr std::uint64_t kColumnwiseRuns = std::uint64_t{1} << 63;

/// Returns the random words of run number `run`; columnwise runs count from kColumnwiseRuns.
NF_HD constexpr PhiloxWords RandomWords(const RandomState& state, std::uint64_t run) noexcept {
  return Philox4x32(
      {static_cast<std::uint32_t>(state.offset), static_cast<std::uint32_t>(state.offset >> 32),
       static_cast<std::uint32_t>(run), static_cast<std::uint32_t>(run >> 32)},
      state.seed);
}

/// Returns the bytes of RandomWords(state, run), the lowest of each word first.
NF_HD constexpr std::array<std::uint8_t, kRandomRun> RandomBytes(const RandomState& state,
                                                                 std::uint64_t run) noexcept {
  const PhiloxWords words = RandomWords(state, run);
  std::array<std::uint8_t, kRandomRun> bytes{};
  for (std::size_t i = 0; i < kRandomRun; ++i) {
    bytes[i] = static_cast<std::uint8_t>(words[i / 4] >> (i % 4 * 8));
  }
  return bytes;
}

/// Returns the E2M1 code of `x` under stochastic rounding with 8 random bits. Rounds up with a
/// probability equal to the distance from the code below, in steps, rounded down to 1/256. Exact
/// for representable values. Special values: saturates above the largest value; NaN gives +6.
/// Source: TransformerEngine common/util/ptx.cuh, the software path of cvt.rs for E2M1.
NF_HD constexpr std::uint32_t EncodeStochastic(float x, std::uint8_t random) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const float a = std::bit_cast<float>(bits & ~kFloatSign);
  if (!(a < kMaxValue<E2M1>)) return Encode<E2M1>(x);
  const float step = a < 2.0f ? 0.5f : a < 4.0f ? 1.0f : 2.0f;
  // The product is exact, so that the sum is rounded once. The division by the step, a power of
  // two, is exact.
  const float raised = a + static_cast<float>(random) * (step * (1.0f / 256.0f));
  const auto steps = static_cast<std::uint32_t>(raised * (1.0f / step));
  const float magnitude = static_cast<float>(steps) * step;
  return Encode<E2M1>(magnitude) | ((bits & kFloatSign) != 0 ? kSignCode<E2M1> : 0u);
}

}  // namespace narrowfloat
