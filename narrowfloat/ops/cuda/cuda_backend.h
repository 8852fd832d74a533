// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/backend.h"

namespace narrowfloat {

/// The backend of CUDA devices: launches kernels for whole tensors on execution.stream, on the
/// current device, and returns. Allocates scratch memory in the order of the stream, so that calls
/// can be captured in graphs. Only BlockScalesToMxfp8 waits until the device has finished.
/// Errors: DeviceError if there is no device, or if the driver rejects a launch; Unsupported for
/// products, and for rows with more than cuda::kMaxRowDims strides.
class CudaBackend final : public Backend {
 public:
  void Amax(const ConstTensorView& in, std::byte* amax, const Execution& execution) const override;
  void HadamardAmax(const ConstTensorView& in, std::uint32_t sign_mask, std::byte* amax,
                    const Execution& execution) const override;
  void HadamardTransform(const ConstTensorView& in, const TensorView& out, std::uint32_t sign_mask,
                         const Execution& execution) const override;
  void ColumnSums(const ConstTensorView& in, const TensorView& sums,
                  const Execution& execution) const override;
  void UpdateDelayedScale(const TensorView& amax_history, const TensorView& scale,
                          const DelayedScaleRule& rule, const ConstTensorView* reduced_amax,
                          const Execution& execution) const override;

  void Quantize(const ConstTensorView& in, const QuantizedView& out,
                const Execution& execution) const override;
  void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                     std::optional<std::span<float>> workspace,
                     const Execution& execution) const override;
  void GroupedQuantize(std::span<const ConstTensorView> ins, std::span<const QuantizedView> outs,
                       const Execution& execution) const override;
  void Dequantize(const ConstQuantizedView& in, Direction direction, const TensorView& out,
                  const Execution& execution) const override;
  void FakeQuantize(const ConstTensorView& in, const QuantSpec& spec, const TensorView& out,
                    const Execution& execution) const override;
  void Requantize(const ConstQuantizedView& in, Direction direction, const QuantizedView& out,
                  DType between, const Execution& execution) const override;

  void Swizzle(const ConstQuantizedView& in, const QuantizedView& out,
               const Execution& execution) const override;
  void BlockScalesToMxfp8(const ConstQuantizedView& in, Direction direction,
                          const TensorView& scales, const Execution& execution) const override;
  void DeriveColumnwise(const ConstQuantizedView& in, const QuantizedView& out,
                        const Execution& execution) const override;
  void TransposeCodes(const ConstTensorView& in, const TensorView& out,
                      const Execution& execution) const override;

  void Multiply(std::span<const Product> products, GemmMode mode,
                const Execution& execution) const override;
};

}  // namespace narrowfloat
