// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <utility>

#include "narrowfloat/types/quantized_tensor.h"

namespace narrowfloat {

/// Schemes that one class of TransformerEngine's stands for, told apart by what they are and not
/// by a list.
struct SchemeFamily {
  std::string_view name;
  bool (*contains)(const SchemeInfo& scheme);
};

/// The family's scheme with that element format. Errors: InvalidArgument naming the formats there
/// are; `verb` begins the message.
const SchemeInfo& FindInFamily(const SchemeFamily& family, std::string_view element);

/// Errors: InvalidArgument if the scheme is not of the family.
void CheckFamily(const SchemeFamily& family, const SchemeInfo& scheme);

/// Errors: InvalidArgument unless the flattened rows and columns are multiples of the scheme's
/// block, as TransformerEngine's `quantizer` asks; a columnwise block is the rowwise one turned, so
/// one length serves both.
void CheckWholeBlocks(const char* verb, std::string_view quantizer, const SchemeInfo& scheme,
                      const Shape& shape);

/// `Base` restricted to a family: the same object under a name that promises what is in it.
template <class Base, const SchemeFamily& kFamily>
class OfFamily : public Base {
 public:
  explicit OfFamily(QuantizedTensorMetadata metadata) : Base(Checked(std::move(metadata))) {}
  explicit OfFamily(Base&& base) : Base(std::move(Checked(base))) {}

 private:
  static QuantizedTensorMetadata Checked(QuantizedTensorMetadata metadata) {
    CheckFamily(kFamily, *metadata.spec.scheme);
    return metadata;
  }
  static Base& Checked(Base& base) {
    CheckFamily(kFamily, *base.Spec().scheme);
    return base;
  }
};

}  // namespace narrowfloat
