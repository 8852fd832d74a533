// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "narrowfloat/schemes/mxfp8.h"
#include "narrowfloat/tensor/layout.h"
#include "narrowfloat/types/quantizer.h"
#include "narrowfloat/types/scheme_family.h"

namespace narrowfloat {

/// FP8 with one E8M0 scale per block of 32, 1-D or 2-D.
inline constexpr SchemeFamily kMxfp8Family{"MXFP8Tensor", [](const SchemeInfo& scheme) {
                                             return scheme.element_bits == 8 &&
                                                    scheme.block.cols == kMxBlock &&
                                                    scheme.layout.scale_type == ScaleType::kE8M0;
                                           }};

using MXFP8TensorStorage = OfFamily<QuantizedTensorStorage, kMxfp8Family>;
using MXFP8Tensor = OfFamily<QuantizedTensor, kMxfp8Family>;

using MXFP8Blocks = FamilyBlocks;

struct MXFP8Options {
  MXFP8Blocks blocks = MXFP8Blocks::kOneDimensional;
  ScalePlacement scales = ScalePlacement::kCompact;
};

/// MXFP8. Accepts tensors with flattened rows and columns that are multiples of the block, as
/// TransformerEngine's class does; the verbs accept any.
class MXFP8Quantizer final : public Quantizer {
 public:
  /// Makes a quantizer to the element format of that name, such as E4M3::kName. Errors:
  /// InvalidArgument for an unknown element format.
  explicit MXFP8Quantizer(std::string_view element, const MXFP8Options& options = {});

  bool IsQuantizable(const Shape& shape) const override;
  std::unique_ptr<Quantizer> Copy() const override;

 private:
  void CheckShape(const char* verb, const Shape& shape) const override;
};

}  // namespace narrowfloat
