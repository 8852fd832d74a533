// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "narrowfloat/ops/delayed_scale.h"
#include "narrowfloat/ops/execution.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/tensor/layout.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// One product of Backend::Multiply: of a's lines with b's lines, in their directions. `options`
/// has the steps after the sums; its layout and mode are ignored.
struct Product {
  const ConstQuantizedView& a;
  Direction a_direction;
  const ConstQuantizedView& b;
  Direction b_direction;
  const TensorView& out;
  const GemmOptions& options;
};

/// The verbs of one device, on whole tensors. The public functions check their arguments and call
/// one member once; docs/architecture.md describes a call.
/// Requires: arguments as the public function of the same name requires them: views on this
/// device, with types, shapes and buffers of the plan; options that the scheme accepts; written
/// memory that overlaps no other argument, unless a member allows it.
/// A member accesses tensors, execution.noop included, only in the order of the device's work. It
/// may return before that work is done, but views, specs and spans are valid only during the call.
/// Any thread may call, also at the same time.
/// Errors: DeviceError or Unsupported, before anything is written unless a member states otherwise.
class Backend {
 public:
  /// Writes the amax of `in` to `amax`, fp32, not necessarily aligned, on this device.
  virtual void Amax(const ConstTensorView& in, std::byte* amax,
                    const Execution& execution) const = 0;
  /// Writes the amax of the random Hadamard transform of `in`, as Amax does.
  virtual void HadamardAmax(const ConstTensorView& in, std::uint32_t sign_mask, std::byte* amax,
                            const Execution& execution) const = 0;
  virtual void HadamardTransform(const ConstTensorView& in, const TensorView& out,
                                 std::uint32_t sign_mask, const Execution& execution) const = 0;
  /// Writes fp32 sums in the order that QuantizeDbias documents.
  virtual void ColumnSums(const ConstTensorView& in, const TensorView& sums,
                          const Execution& execution) const = 0;
  /// Sets delayed scaling's history and scales in place. Reads no `reduced_amax` if it is null.
  virtual void UpdateDelayedScale(const TensorView& amax_history, const TensorView& scale,
                                  const DelayedScaleRule& rule, const ConstTensorView* reduced_amax,
                                  const Execution& execution) const = 0;

  virtual void Quantize(const ConstTensorView& in, const QuantizedView& out,
                        const Execution& execution) const = 0;
  /// Allocates the workspace if it is absent.
  virtual void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out,
                             const TensorView& dbias, std::optional<std::span<float>> workspace,
                             const Execution& execution) const = 0;
  /// Quantizes ins[g] to outs[g]. Specs have the group's offset of random numbers.
  virtual void GroupedQuantize(std::span<const ConstTensorView> ins,
                               std::span<const QuantizedView> outs,
                               const Execution& execution) const = 0;
  /// Reads the buffers of one direction.
  virtual void Dequantize(const ConstQuantizedView& in, Direction direction, const TensorView& out,
                          const Execution& execution) const = 0;
  /// Accepts `in` as `out`.
  virtual void FakeQuantize(const ConstTensorView& in, const QuantSpec& spec, const TensorView& out,
                            const Execution& execution) const = 0;
  /// Reads the buffers of one direction of `in`, and rounds the values to the type `between`.
  virtual void Requantize(const ConstQuantizedView& in, Direction direction,
                          const QuantizedView& out, DType between,
                          const Execution& execution) const = 0;

  /// Permutes the scales of the directions that `in` has to the placement of out.spec. Copies
  /// other buffers that are not the same memory.
  virtual void Swizzle(const ConstQuantizedView& in, const QuantizedView& out,
                       const Execution& execution) const = 0;
  /// Errors: InvalidArgument, before anything is written, if a scale is not a power of two.
  virtual void BlockScalesToMxfp8(const ConstQuantizedView& in, Direction direction,
                                  const TensorView& scales, const Execution& execution) const = 0;
  virtual void DeriveColumnwise(const ConstQuantizedView& in, const QuantizedView& out,
                                const Execution& execution) const = 0;
  virtual void TransposeCodes(const ConstTensorView& in, const TensorView& out,
                              const Execution& execution) const = 0;

  /// Computes independent products. Errors: DeviceError if a library fails in mode kFast; results
  /// are then partly written.
  virtual void Multiply(std::span<const Product> products, GemmMode mode,
                        const Execution& execution) const = 0;

 protected:
  ~Backend() = default;  // not deleted through this class
};

/// Returns "cpu", "cuda", or the number of a device that has no name.
std::string DeviceName(Device device);

/// Returns the backend of a device, or null. The CPU always has one.
const Backend* FindBackendOf(Device device);

/// Makes the verbs call `backend` for tensors on `device`; null removes it. Replaces an earlier
/// one. Requires: the backend lives as long as calls use it. Errors: InvalidArgument for the CPU
/// and for a device without a name.
void RegisterBackend(Device device, const Backend* backend);

}  // namespace narrowfloat
