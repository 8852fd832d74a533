// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/nvfp4_tensor.h"

namespace narrowfloat {
namespace {

// Sets both directions, the default of TransformerEngine's quantizers.
QuantSpec MakeSpec(const NVFP4Options& options) {
  const FamilyBlocks blocks =
      options.with_2d_quantization ? FamilyBlocks::kTwoDimensional : FamilyBlocks::kOneDimensional;
  QuantSpec spec{.scheme = &FindInFamily(kNvfp4Family, E2M1::kName, blocks), .columnwise = true};
  spec.swizzled = options.scales == ScalePlacement::kSwizzled;
  spec.rht = options.with_rht;
  if (options.with_rht && !options.with_random_sign_mask) spec.rht_sign_mask = 0;
  spec.stochastic_rounding = options.stochastic_rounding;
  if (options.stochastic_rounding) {
    spec.seed = options.random.seed;
    spec.offset = options.random.offset;
  }
  spec.row_scaled = options.row_scaled_nvfp4;
  spec.four_over_six = options.four_over_six;
  if (options.four_over_six != FourOverSix::kOff) spec.e4m3_max = options.nvfp4_e4m3_max;
  ValidateSpec(spec);
  return spec;
}

}  // namespace

NVFP4Quantizer::NVFP4Quantizer(const NVFP4Options& options) : Quantizer(MakeSpec(options)) {}

bool NVFP4Quantizer::IsQuantizable(const Shape& shape) const {
  return shape.size() >= 2 && Quantizer::IsQuantizable(shape);
}

std::unique_ptr<Quantizer> NVFP4Quantizer::Copy() const {
  return std::make_unique<NVFP4Quantizer>(*this);
}

void NVFP4Quantizer::CheckShape(const char* verb, const Shape& shape) const {
  CheckWholeBlocks(verb, "NVFP4Quantizer", *Spec().scheme, shape);
}

}  // namespace narrowfloat
