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

/// Returns the form of a quantized weight of any convention. Errors: Unsupported if its codes and
/// scales have no counterpart elsewhere: columnwise buffers alone; swizzled, row-scaled or
/// block-major scales; blocks that span several matrices.
ForeignWeight FormOf(const StoredTensor& tensor);

/// A weight without what its convention adds: codes row by row, one scale per block, no padding.
struct CanonicalWeight {
  ForeignWeight form;
  std::span<const std::byte> codes;
  std::vector<std::byte> scales;       // of 16-bit types in fp32, which `form` names
  std::vector<float> globals = {1};    // scales of the whole tensor, used as form.global says
  std::vector<std::byte> own_codes{};  // what `codes` views if the input's were in another order
};

/// Requires: `input` has the bytes of each of the tensor's entries. Errors: as FormOf.
CanonicalWeight Canonical(const StoredTensor& tensor,
                          const std::vector<std::span<const std::byte>>& input);

/// Returns the scale of a whole NVFP4 tensor of that amax: amax over the largest product of a code
/// and a block's scale.
float GlobalOfAmax(float amax, float e4m3_max);

/// Returns the weight with its power-of-two scales converted to fp32.
CanonicalWeight WithFp32Scales(CanonicalWeight weight);

/// Returns the formats in which `convention` holds such a weight with the same codes, best first: a
/// weight of 128x128 with one scale is per tensor and a tile. Formats whose readers need a
/// scale of the inputs that the weight lacks are last.
std::vector<const WrittenFormat*> FindWritten(const ConventionRow& convention,
                                              const ForeignWeight& form);

/// Returns the tensors of the weight `name` in that format: codes, scale and, if it has one, the
/// scale of the whole tensor. `operation` begins messages. Errors: Unsupported if the name does not
/// end as the convention's names do.
std::vector<TensorEntry> PlanWritten(const std::string& operation, const ConventionRow& convention,
                                     const WrittenFormat& format, const std::string& name,
                                     const ForeignWeight& form);

/// Returns the tensor that has the scale of the inputs of the weight `name` in that format; nullopt
/// if its readers need none.
std::optional<TensorEntry> WrittenInputScale(const WrittenFormat& format, const std::string& name);

/// Returns the bytes of the scales among these tensors, in their order; codes do not change. Scales
/// of blocks change their type or place, never their value. A scale of the whole tensor may become
/// its reciprocal, and this library's amax becomes a scale: each rounds once.
std::vector<std::vector<std::byte>> WrittenScales(const CanonicalWeight& weight,
                                                  const ConventionRow& convention,
                                                  const WrittenFormat& format);

}  // namespace narrowfloat::io
