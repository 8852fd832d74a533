// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "narrowfloat/schemes/fp8_block.h"
#include "narrowfloat/types/quantizer.h"
#include "narrowfloat/types/scheme_family.h"

namespace narrowfloat {

/// FP8 with one fp32 scale per block of 128, 1-D or 2-D.
inline constexpr SchemeFamily kFloat8BlockFamily{
    "Float8BlockwiseQTensor", [](const SchemeInfo& scheme) {
      return scheme.element_bits == 8 && scheme.block.cols == kFp8Block &&
             scheme.layout.scale_type == ScaleType::kFloat32;
    }};

using Float8BlockwiseQTensorStorage = OfFamily<QuantizedTensorStorage, kFloat8BlockFamily>;
using Float8BlockwiseQTensor = OfFamily<QuantizedTensor, kFloat8BlockFamily>;

struct Float8BlockOptions {
  int block_scaling_dim = 2;  // 1: runs along rows and columns; 2: square tiles
  bool force_pow_2_scales = true;
  float amax_epsilon = 0.0f;
};

/// Block-scaled FP8. Accepts any shape, as TransformerEngine's class does; a short last block is
/// quantized as if zero-padded.
class Float8BlockQuantizer final : public Quantizer {
 public:
  /// Makes a quantizer to the element format of that name, such as E4M3::kName. Errors:
  /// InvalidArgument for an unknown element format or a block_scaling_dim other than 1 or 2; as
  /// ValidateSpec.
  explicit Float8BlockQuantizer(std::string_view element, const Float8BlockOptions& options = {});

  /// Returns true for shapes of two or more dimensions with rows and columns, flattened, that are
  /// multiples of the block. TransformerEngine's modules quantize only these.
  bool IsQuantizable(const Shape& shape) const override;
  std::unique_ptr<Quantizer> Copy() const override;
};

}  // namespace narrowfloat
