// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {

/// Quantizes by docs/numerics.md, one element after another, and fills every planned buffer.
/// Computes in binary64, with one rounding to binary32 per rounding of the document. Computes
/// blocks and positions of scales by formulas. Supports every scheme of the library.
void ReferenceQuantize(const FloatTensor& in, QuantizedBuffers& out);

/// Quantizes one direction to NVFP4, with every option.
void ReferenceNvfp4(const FloatTensor& in, bool rowwise, QuantizedBuffers& out);

/// Returns the scale of per-tensor and block-scaled FP8, computed in binary64. Requires: amax is
/// not negative. Source: docs/numerics.md, "Per-tensor FP8".
float ReferenceScale(float amax, double max, float epsilon, bool power_of_two,
                     float overflow = std::numeric_limits<float>::max());

/// Returns the E8M0 code of an MX block's scale, by a search over the powers of two. Source:
/// docs/numerics.md, "Formats".
std::uint32_t ReferenceMxCode(double amax, double max);

/// Returns the bits of the code's value times `scale_inv`, rounded to binary32 and then to `dtype`.
/// NaN is 0x7FC00000, or the NaN of a 16-bit type that ReferenceFormat lists.
std::uint32_t ReferenceDequantize(std::string_view element, std::uint32_t code, double scale_inv,
                                  DType dtype);

}  // namespace narrowfloat::conformance
