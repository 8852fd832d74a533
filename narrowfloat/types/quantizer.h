// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "narrowfloat/types/quantized_tensor.h"

namespace narrowfloat {

/// How tensors are to be quantized, and the maker of such tensors. Holds no tensor's data; a
/// concrete one may refer to state that somebody else owns.
class Quantizer {
 public:
  virtual ~Quantizer() = default;

  /// Errors: as the verb Quantize; InvalidArgument for a shape that the class does not take.
  QuantizedTensor Quantize(const ConstTensorView& in, const Execution& execution = {}) const;

  /// Quantizes into a tensor that exists. This quantizer's directions rule: buffers they need and
  /// `out` lacks are allocated, the others released, the rest filled in place, so that who shares
  /// them sees it. Errors: as Quantize, and if `out` has another shape, its buffers are laid out
  /// otherwise or it was prepared for saving; `out` then is as it was.
  void UpdateQuantized(const ConstTensorView& in, QuantizedTensorStorage& out,
                       const Execution& execution = {}) const;

  /// Wanted directions; nothing keeps one as it is.
  void SetUsage(std::optional<bool> rowwise, std::optional<bool> columnwise);

  /// A tensor with buffers that are not initialised.
  QuantizedTensor MakeEmpty(const Shape& shape, DType dtype = DType::kFloat32) const;

  /// What the next Quantize goes by.
  virtual QuantSpec Spec() const { return spec_; }

  /// Whether a tensor of that shape can be quantized.
  virtual bool IsQuantizable(const Shape& shape) const;

  /// The same configuration; state that somebody else owns is shared.
  virtual std::unique_ptr<Quantizer> Copy() const = 0;

 protected:
  explicit Quantizer(const QuantSpec& spec) : spec_(spec) {}
  Quantizer(const Quantizer&) = default;
  Quantizer& operator=(const Quantizer&) = default;

  /// Throws if the class does not take that shape.
  virtual void CheckShape(const char* verb, const Shape& shape) const;

  /// Sees every tensor just quantized.
  virtual void Observe(const ConstQuantizedView& quantized) const;

 private:
  QuantSpec spec_;
};

}  // namespace narrowfloat
