// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "narrowfloat/io/checkpoint.h"

/// Models that were cast to FP8 and have no scales.
namespace narrowfloat::io {

inline constexpr std::string_view kUnscaledFp8Name = "unscaled-fp8";

/// An FP8 weight, and a tensor that may be its scale under a name of no convention.
struct PossibleScale {
  std::string weight, scale;
};

/// Returns the first such pair of a checkpoint's tensors, by their names; nullopt if no pair
/// exists.
std::optional<PossibleScale> FindPossibleScale(const Checkpoint& checkpoint);

}  // namespace narrowfloat::io
