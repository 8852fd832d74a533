// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "narrowfloat/numerics/stochastic.h"
#include "narrowfloat/tensor/layout.h"
#include "narrowfloat/types/quantizer.h"
#include "narrowfloat/types/scheme_family.h"

namespace narrowfloat {

/// FP4 with one E4M3 scale per block, and one amax per direction or per line, 1-D or 2-D.
inline constexpr SchemeFamily kNvfp4Family{"NVFP4Tensor", [](const SchemeInfo& scheme) {
                                             return scheme.layout.scale_type == ScaleType::kE4M3;
                                           }};

using NVFP4TensorStorage = OfFamily<QuantizedTensorStorage, kNvfp4Family>;
using NVFP4Tensor = OfFamily<QuantizedTensor, kNvfp4Family>;

struct NVFP4Options {
  bool with_2d_quantization = false;
  bool with_rht = false;
  bool with_random_sign_mask = true;  // else the transform negates no input
  bool stochastic_rounding = false;
  RandomState random{};
  bool row_scaled_nvfp4 = false;
  FourOverSix four_over_six = FourOverSix::kOff;
  float nvfp4_e4m3_max = kMaxValue<E4M3>;  // used with four_over_six only
  ScalePlacement scales = ScalePlacement::kCompact;
};

/// NVFP4. Accepts tensors with flattened rows and columns that are multiples of the block, as
/// TransformerEngine's class does; the verbs accept any even length.
class NVFP4Quantizer final : public Quantizer {
 public:
  /// Makes a quantizer. Errors: as ValidateSpec, such as options that exclude each other.
  explicit NVFP4Quantizer(const NVFP4Options& options = {});

  bool IsQuantizable(const Shape& shape) const override;
  std::unique_ptr<Quantizer> Copy() const override;

 private:
  void CheckShape(const char* verb, const Shape& shape) const override;
};

}  // namespace narrowfloat
