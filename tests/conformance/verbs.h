// SPDX-License-Identifier: Apache-2.0
// The verbs that are compared with records, on the CPU's kernel tables or on a CUDA device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "narrowfloat/ops/delayed_scale.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {

/// Calls verbs on tensors in CPU memory. A derived class computes them on one device.
class Verbs {
 public:
  virtual ~Verbs() = default;
  /// Returns the name of the kernel table or the device, for messages.
  virtual std::string Name() const = 0;
  virtual void Quantize(const FloatTensor& in, QuantizedBuffers& out) const = 0;
  virtual void QuantizeDbias(const FloatTensor& in, QuantizedBuffers& out,
                             FloatTensor& dbias) const = 0;
  virtual void Dequantize(const QuantizedBuffers& in, FloatTensor& out) const = 0;
  virtual void Swizzle(const QuantizedBuffers& in, QuantizedBuffers& out) const = 0;
  virtual void Unswizzle(const QuantizedBuffers& in, QuantizedBuffers& out) const = 0;
  virtual void HadamardTransform(const FloatTensor& in, FloatTensor& out,
                                 std::uint32_t sign_mask) const = 0;
  virtual void UpdateDelayedScale(const TensorView& amax_history, const TensorView& scale,
                                  const DelayedScaleRule& rule,
                                  const ConstTensorView* reduced_amax) const = 0;
};

/// Returns the verbs of each kernel table that this machine supports, with each ExecutionVariant.
const std::vector<std::unique_ptr<Verbs>>& CpuVerbs();

}  // namespace narrowfloat::conformance
