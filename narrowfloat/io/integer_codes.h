// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "narrowfloat/io/checkpoint.h"

/// Integer weights of conventions that are not read: INT8, AWQ, GPTQ, bitsandbytes, MLX and others.
namespace narrowfloat::io {

/// Returns whether integers of that type may be codes: those of at most 32 bits. Positions and
/// indices have 64.
bool MayBeIntegerCodes(FileDType dtype);

/// A matrix of integers, and the tensor whose name tells that they are codes.
struct IntegerCodes {
  const TensorEntry *codes, *scale;
};

/// Finds integer codes: a tensor of two or more dimensions beside a tensor that may be its scale by
/// the names of both. Masks, positions and other integers of float models have no such scale.
/// Returns nullopt if the checkpoint has no integer codes.
std::optional<IntegerCodes> FindScaledIntegers(const Checkpoint& checkpoint);

}  // namespace narrowfloat::io
