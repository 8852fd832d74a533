// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/mxfp8_tensor.h"

namespace narrowfloat {
namespace {

// Sets both directions, the default of TransformerEngine's quantizers.
QuantSpec MakeSpec(std::string_view element, const MXFP8Options& options) {
  return {.scheme = &FindInFamily(kMxfp8Family, element, options.blocks),
          .columnwise = true,
          .swizzled = options.scales == ScalePlacement::kSwizzled};
}

}  // namespace

MXFP8Quantizer::MXFP8Quantizer(std::string_view element, const MXFP8Options& options)
    : Quantizer(MakeSpec(element, options)) {}

bool MXFP8Quantizer::IsQuantizable(const Shape& shape) const {
  return shape.size() >= 2 && Quantizer::IsQuantizable(shape);
}

std::unique_ptr<Quantizer> MXFP8Quantizer::Copy() const {
  return std::make_unique<MXFP8Quantizer>(*this);
}

void MXFP8Quantizer::CheckShape(const char* verb, const Shape& shape) const {
  CheckWholeBlocks(verb, "MXFP8Quantizer", *Spec().scheme, shape);
}

}  // namespace narrowfloat
