// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {

/// Quantizes by docs/numerics.md, slowly: elements one by one, in binary64 with one rounding to
/// binary32 where the document has one, blocks and places of scales from the formulas.
/// Fills every planned buffer. Knows every scheme.
void ReferenceQuantize(const FloatTensor& in, QuantizedBuffers& out);

/// Quantizes one direction to NVFP4, with every option.
void ReferenceNvfp4(const FloatTensor& in, bool rowwise, QuantizedBuffers& out);

/// Returns the multiplier of per-tensor and block scaling, in binary64. Source:
/// docs/numerics.md, "Per-tensor FP8".
float ReferenceScale(float amax, double max, float epsilon, bool power_of_two,
                     float overflow = std::numeric_limits<float>::max());

/// Returns the E8M0 code of an MX block, by search over the powers of two. Source:
/// docs/numerics.md, "Formats".
std::uint32_t ReferenceMxCode(double amax, double max);

/// Returns the value of code times 2^(scale_code - 127), rounded to binary32, then to `dtype`; as
/// bits.
std::uint32_t ReferenceDequantize(std::string_view element, std::uint32_t code, double scale_inv,
                                  DType dtype);

}  // namespace narrowfloat::conformance
