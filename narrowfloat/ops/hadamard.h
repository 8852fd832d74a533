// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "narrowfloat/numerics/hadamard.h"
#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Writes the random Hadamard transform of `in` to `out`: with the signs s of `sign_mask` (bit k
/// set: s_k is -1) and Sylvester's matrix H, row 16 g + j becomes 0.25 * sum over k of s_k H_kj
/// times row 16 g + k, the exact sum rounded once to the items' type.
/// Shapes: equal, flattened to rows x cols; rows a multiple of 16; equal float types.
/// Special values: as in IEEE addition, in any order; a sum of zero is +0.
/// Errors: InvalidArgument if shapes, types or rows do not fit, sign_mask has more than 16 bits, or
/// the two overlap.
/// Source: TransformerEngine common/hadamard_transform, the transform of columnwise NVFP4.
void HadamardTransform(const ConstTensorView& in, const TensorView& out,
                       std::uint32_t sign_mask = kHadamardSignMask,
                       const Execution& execution = {});

/// Returns the largest magnitude of the transform of `in`, NaN ignored; stores no transform.
/// Errors: as HadamardTransform, or if `in` is not in CPU memory; `in` is of any float type.
float HadamardAmax(const ConstTensorView& in, std::uint32_t sign_mask = kHadamardSignMask,
                   const Execution& execution = {});

/// Writes that magnitude to `amax`, float32 of shape [1], on the device of `in`. Errors:
/// InvalidArgument as above, or if `amax` is not as described or overlaps `in`.
void HadamardAmax(const ConstTensorView& in, const TensorView& amax,
                  std::uint32_t sign_mask = kHadamardSignMask, const Execution& execution = {});

}  // namespace narrowfloat
