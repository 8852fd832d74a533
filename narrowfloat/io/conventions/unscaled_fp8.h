// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "narrowfloat/io/checkpoint.h"

/// Models that were cast to FP8 and have no scales.
namespace narrowfloat::io {

inline constexpr std::string_view kUnscaledFp8Name = "unscaled-fp8";

/// An FP8 weight, and a tensor that may be its scale under a name that no convention has.
struct PossibleScale {
  std::string weight, scale;
};

/// Compares the names of a checkpoint's tensors; returns the first such pair, nullopt if none.
std::optional<PossibleScale> FindPossibleScale(const Checkpoint& checkpoint);

}  // namespace narrowfloat::io
