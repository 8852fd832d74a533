// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "narrowfloat/types/quantized_tensor.h"

namespace narrowfloat {

/// The schemes that one class of TransformerEngine represents, selected by their properties, not by
/// a list.
struct SchemeFamily {
  std::string_view name;
  bool (*contains)(const SchemeInfo& scheme);
};

/// Elements that share a scale: a run along a row or column (or the whole tensor), or a square
/// tile.
enum class FamilyBlocks : std::uint8_t { kOneDimensional, kTwoDimensional };

/// Returns the family's scheme with that element format and kind of blocks. Errors: InvalidArgument
/// naming the formats of such schemes.
const SchemeInfo& FindInFamily(const SchemeFamily& family, std::string_view element,
                               FamilyBlocks blocks = FamilyBlocks::kOneDimensional);

/// Checks a scheme. Errors: InvalidArgument if it is not in the family.
void CheckFamily(const SchemeFamily& family, const SchemeInfo& scheme);

/// Checks a shape. Errors: InvalidArgument, beginning with `verb`, unless it has whole blocks, as
/// TransformerEngine's `quantizer` needs.
void CheckWholeBlocks(const char* verb, std::string_view quantizer, const SchemeInfo& scheme,
                      const Shape& shape);

/// `Base` restricted to a family: the same object under the name of its family.
template <class Base, const SchemeFamily& kFamily>
class OfFamily : public Base {
 public:
  explicit OfFamily(QuantizedTensorMetadata metadata) : Base(Checked(std::move(metadata))) {}
  explicit OfFamily(Base&& base) : Base(std::move(Checked(base))) {}

 private:
  static QuantizedTensorMetadata Checked(QuantizedTensorMetadata metadata) {
    CheckScheme(metadata.spec);
    CheckFamily(kFamily, *metadata.spec.scheme);
    return metadata;
  }
  static Base& Checked(Base& base) {
    CheckFamily(kFamily, *base.Spec().scheme);
    return base;
  }
};

}  // namespace narrowfloat
