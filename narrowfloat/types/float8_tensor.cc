// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/float8_tensor.h"

#include <cstring>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/float_environment.h"

namespace narrowfloat {
namespace {

// Sets both directions, the default of TransformerEngine's quantizers.
QuantSpec DelayedSpec(std::string_view element) {
  return {.scheme = &FindInFamily(kFloat8Family, element), .columnwise = true};
}

QuantSpec CurrentSpec(std::string_view element, const CurrentScalingOptions& options) {
  QuantSpec spec = DelayedSpec(element);
  spec.force_pow_2_scales = options.force_pow_2_scales;
  spec.amax_epsilon = options.amax_epsilon;
  ValidateSpec(spec);
  return spec;
}

}  // namespace

Float8Quantizer::Float8Quantizer(const float* scale, float* amax, std::string_view element)
    : Quantizer(DelayedSpec(element)), scale_(scale), amax_(amax) {
  if (scale_ == nullptr || amax_ == nullptr) {
    throw InvalidArgument("quantizer: Float8Quantizer needs a scale and an amax, got null");
  }
}

QuantSpec Float8Quantizer::Spec() const {
  QuantSpec spec = Quantizer::Spec();
  spec.scale = *scale_;
  return spec;
}

std::unique_ptr<Quantizer> Float8Quantizer::Copy() const {
  return std::make_unique<Float8Quantizer>(*this);
}

void Float8Quantizer::Observe(const ConstQuantizedView& quantized) const {
  const FloatEnvironment environment;  // a subnormal amax is larger than 0
  float amax = 0.0f;
  std::memcpy(&amax, quantized[Role::kAmaxRowwise].data, sizeof amax);
  if (amax > *amax_) *amax_ = amax;
}

Float8CurrentScalingQuantizer::Float8CurrentScalingQuantizer(std::string_view element,
                                                             const CurrentScalingOptions& options)
    : Quantizer(CurrentSpec(element, options)) {}

std::unique_ptr<Quantizer> Float8CurrentScalingQuantizer::Copy() const {
  return std::make_unique<Float8CurrentScalingQuantizer>(*this);
}

}  // namespace narrowfloat
