// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/io/convention.h"
#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {

/// Returns the form of a quantized weight of any convention. Errors: Unsupported if other
/// conventions cannot store its codes and scales: columnwise buffers alone; swizzled, row-scaled or
/// block-major scales; blocks that span several matrices.
ForeignWeight FormOf(const StoredTensor& tensor);

/// A weight in a form common to all conventions: codes row by row, one scale per block, no padding.
struct CanonicalWeight {
  ForeignWeight form;
  std::span<const std::byte> codes;
  std::vector<std::byte> scales;       // of type form.scale, never of 16 bits
  std::vector<float> globals = {1};    // scales of the whole tensor, used according to form.global
  std::vector<std::byte> own_codes{};  // backs `codes` if the input's codes had another order
};

/// Converts a weight. Requires: `input` has the bytes of each entry. Errors: as FormOf.
CanonicalWeight Canonical(const StoredTensor& tensor,
                          const std::vector<std::span<const std::byte>>& input);

/// Returns the scale of a whole NVFP4 tensor with that amax: amax divided by the largest product of
/// a code and a block's scale.
float GlobalOfAmax(float amax, float e4m3_max);

/// Returns the weight with its power-of-two scales converted to fp32.
CanonicalWeight WithFp32Scales(CanonicalWeight weight);

/// Returns the formats of `convention` that store such a weight with the same codes, best first. A
/// weight of 128x128 with one scale fits per-tensor formats and tile formats. Formats come last if
/// their readers need an input scale that the weight does not have.
std::vector<const WrittenFormat*> FindWritten(const ConventionRow& convention,
                                              const ForeignWeight& form);

/// Returns the tensors of the weight `name` in that format: codes, scale and, if it has one, the
/// scale of the whole tensor. `operation` begins messages. Errors: Unsupported if the name does not
/// have the suffix of the convention's names.
std::vector<TensorEntry> PlanWritten(const std::string& operation, const ConventionRow& convention,
                                     const WrittenFormat& format, const std::string& name,
                                     const ForeignWeight& form);

/// Returns the tensor with the input scale of the weight `name` in that format; nullopt if its
/// readers need none.
std::optional<TensorEntry> WrittenInputScale(const WrittenFormat& format, const std::string& name);

/// Returns the bytes of the scales among these tensors, in their order; codes do not change. Block
/// scales may change their type or position, never their value. A scale of the whole tensor may
/// become its reciprocal, and this library's amax becomes a scale; each is rounded once.
std::vector<std::vector<std::byte>> WrittenScales(const CanonicalWeight& weight,
                                                  const ConventionRow& convention,
                                                  const WrittenFormat& format);

}  // namespace narrowfloat::io
