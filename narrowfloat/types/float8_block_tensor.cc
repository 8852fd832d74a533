// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/float8_block_tensor.h"

#include <fmt/format.h>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/layout.h"
#include "narrowfloat/tensor/shape.h"

namespace narrowfloat {
namespace {

// Sets both directions, the default of TransformerEngine's quantizers.
QuantSpec MakeSpec(std::string_view element, const Float8BlockOptions& options) {
  if (options.block_scaling_dim != 1 && options.block_scaling_dim != 2) {
    throw InvalidArgument(
        fmt::format("quantizer: Float8BlockQuantizer's block_scaling_dim must be 1 or 2, got {}",
                    options.block_scaling_dim));
  }
  const FamilyBlocks blocks = options.block_scaling_dim == 1 ? FamilyBlocks::kOneDimensional
                                                             : FamilyBlocks::kTwoDimensional;
  QuantSpec spec{.scheme = &FindInFamily(kFloat8BlockFamily, element, blocks),
                 .columnwise = true,
                 .amax_epsilon = options.amax_epsilon,
                 .force_pow_2_scales = options.force_pow_2_scales};
  ValidateSpec(spec);
  return spec;
}

}  // namespace

Float8BlockQuantizer::Float8BlockQuantizer(std::string_view element,
                                           const Float8BlockOptions& options)
    : Quantizer(MakeSpec(element, options)) {}

bool Float8BlockQuantizer::IsQuantizable(const Shape& shape) const {
  return shape.size() >= 2 && Quantizer::IsQuantizable(shape) &&
         HasWholeBlocks(*Spec().scheme, FlattenShape(shape));
}

std::unique_ptr<Quantizer> Float8BlockQuantizer::Copy() const {
  return std::make_unique<Float8BlockQuantizer>(*this);
}

}  // namespace narrowfloat
