// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "narrowfloat/types/quantized_tensor.h"

namespace narrowfloat {

/// A configuration that makes quantized tensors. Holds no tensor's data; a concrete class may refer
/// to state that the caller owns.
class Quantizer {
 public:
  virtual ~Quantizer() = default;

  /// Returns `in` quantized by Spec(), its float type as the nominal type; zeros if the call is a
  /// noop. Errors: as the verb Quantize; InvalidArgument for a shape that the class does not
  /// accept.
  QuantizedTensor Quantize(const ConstTensorView& in, const Execution& execution = {}) const;

  /// Quantizes into an existing tensor in this quantizer's directions: allocates the buffers that
  /// `out` lacks, releases unused ones, and writes the rest in place, so that all handles to them
  /// see the new data. Errors: as Quantize, and if `out` has another shape, another buffer layout,
  /// or was prepared for saving; `out` is then unchanged.
  void UpdateQuantized(const ConstTensorView& in, QuantizedTensorStorage& out,
                       const Execution& execution = {}) const;

  /// Sets the directions; nullopt keeps a direction as it is.
  void SetUsage(std::optional<bool> rowwise, std::optional<bool> columnwise);

  /// Returns a tensor with buffers that are not initialised. Errors: as Quantize.
  QuantizedTensor MakeEmpty(const Shape& shape, DType dtype = DType::kFloat32) const;

  /// Returns the spec of the next Quantize.
  virtual QuantSpec Spec() const { return spec_; }

  /// Returns true if a tensor of that shape can be quantized.
  virtual bool IsQuantizable(const Shape& shape) const;

  /// Returns the same configuration; both share state that the caller owns.
  virtual std::unique_ptr<Quantizer> Copy() const = 0;

 protected:
  explicit Quantizer(const QuantSpec& spec) : spec_(spec) {}
  Quantizer(const Quantizer&) = default;
  Quantizer& operator=(const Quantizer&) = default;

  /// Checks a shape. Errors: InvalidArgument, beginning with `verb`, if the class does not accept
  /// it.
  virtual void CheckShape(const char* verb, const Shape& shape) const;

  /// Receives the result after each quantization.
  virtual void Observe(const ConstQuantizedView& quantized) const;

 private:
  QuantSpec spec_;
};

}  // namespace narrowfloat
