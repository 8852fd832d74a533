// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "narrowfloat/types/quantizer.h"
#include "narrowfloat/types/scheme_family.h"

namespace narrowfloat {

/// FP8 with one scale for the whole tensor.
inline constexpr SchemeFamily kFloat8Family{
    "Float8Tensor",
    [](const SchemeInfo& scheme) { return scheme.element_bits == 8 && scheme.HasOneScale(); }};

using Float8TensorStorage = OfFamily<QuantizedTensorStorage, kFloat8Family>;
using Float8Tensor = OfFamily<QuantizedTensor, kFloat8Family>;

/// Delayed scaling with a scale and an amax that the caller owns. Both must outlive the quantizer
/// and its copies. Raises the amax to the largest amax of the tensors that it quantizes.
class Float8Quantizer final : public Quantizer {
 public:
  /// Makes a quantizer to the element format of that name, such as E4M3::kName. Errors:
  /// InvalidArgument for an unknown element format or a null pointer.
  Float8Quantizer(const float* scale, float* amax, std::string_view element);

  QuantSpec Spec() const override;
  std::unique_ptr<Quantizer> Copy() const override;

 private:
  void Observe(const ConstQuantizedView& quantized) const override;

  const float* scale_;
  float* amax_;
};

struct CurrentScalingOptions {
  bool force_pow_2_scales = false;
  float amax_epsilon = 0.0f;
};

/// Current scaling: computes the scale from the tensor's own amax.
class Float8CurrentScalingQuantizer final : public Quantizer {
 public:
  /// Makes a quantizer to the element format of that name. Errors: InvalidArgument for an unknown
  /// element format; as ValidateSpec.
  explicit Float8CurrentScalingQuantizer(std::string_view element,
                                         const CurrentScalingOptions& options = {});

  std::unique_ptr<Quantizer> Copy() const override;
};

}  // namespace narrowfloat
