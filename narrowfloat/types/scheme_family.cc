// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/scheme_family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/layout.h"

namespace narrowfloat {

const SchemeInfo& FindInFamily(const SchemeFamily& family, std::string_view element,
                               FamilyBlocks blocks) {
  std::vector<std::string_view> elements;
  for (const SchemeInfo& scheme : kSchemes) {
    const bool has_tiles = scheme.block.rows > 1;
    if (!family.contains(scheme) || has_tiles != (blocks == FamilyBlocks::kTwoDimensional))
      continue;
    if (scheme.element == element) return scheme;
    elements.push_back(scheme.element);
  }
  throw InvalidArgument(fmt::format("quantizer: {} needs one of the elements {}, got '{}'",
                                    family.name, fmt::join(elements, ", "), element));
}

void CheckWholeBlocks(const char* verb, std::string_view quantizer, const SchemeInfo& scheme,
                      const Shape& shape) {
  if (HasWholeBlocks(scheme, FlattenShape(shape))) return;
  throw InvalidArgument(
      fmt::format("{}: {} needs rows and columns in multiples of {}, got shape {}", verb, quantizer,
                  scheme.block.cols, ShapeText(shape)));
}

void CheckFamily(const SchemeFamily& family, const SchemeInfo& scheme) {
  if (family.contains(scheme)) return;
  throw InvalidArgument(
      fmt::format("quantized_tensor: {} cannot hold {}", family.name, scheme.name));
}

}  // namespace narrowfloat
