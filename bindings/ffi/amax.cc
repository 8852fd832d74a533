// SPDX-License-Identifier: Apache-2.0
// te_rht_amax_ffi, and the handlers that compute scales from amaxes. XLA cannot compute these: its
// own code flushes subnormals, and its maximum keeps NaN.
#include "narrowfloat/ops/amax.h"

#include <fmt/format.h>

#include <utility>

#include "bindings/ffi/attributes.h"
#include "bindings/ffi/buffers.h"
#include "bindings/ffi/decoding.h"
#include "bindings/ffi/execution.h"
#include "narrowfloat/ops/delayed_scale.h"
#include "narrowfloat/ops/hadamard.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::xla_ffi {
namespace {

using Result = ffi::Result<ffi::AnyBuffer>;

std::uint32_t CheckedMask(std::int64_t mask) {
  if (mask >= 0 && mask >> kHadamardSize == 0) return static_cast<std::uint32_t>(mask);
  throw InvalidArgument(fmt::format(
      "rht_amax: rht_matrix_random_sign_mask_t must fit in {} bits, got {}", kHadamardSize, mask));
}

ffi::Error RHTAmaxFFI(ffi::AnyBuffer input, Result amax, Result post_rht_amax,
                      std::int64_t sign_mask, bool produce_regular_amax, std::int64_t flatten_axis,
                      Platform platform) {
  constexpr const char* kVerb = "rht_amax";
  return RunOn(platform, [&](const CallExecution& execution) {
    const Device device = execution.device;
    const std::uint32_t mask = CheckedMask(sign_mask);
    const MatrixShape matrix = SplitShape(kVerb, ShapeOf(input), flatten_axis);
    const ConstTensorView view = MatrixView({kVerb, "the input"}, input, matrix, device);
    float* regular = MutableFloats({kVerb, "amax"}, *amax, 1);
    float* transformed = MutableFloats({kVerb, "post_rht_amax"}, *post_rht_amax, 1);
    HadamardAmax(view, FloatView(transformed, 0, device), mask, execution);
    if (!produce_regular_amax) return ZeroFrom(execution, *amax);
    Amax(view, FloatView(regular, 0, device), execution);
  });
}

ffi::Error AmaxFFI(ffi::AnyBuffer input, Result amax, Platform platform) {
  constexpr const char* kVerb = "amax";
  return RunOn(platform, [&](const CallExecution& execution) {
    const Device device = execution.device;
    float* largest = MutableFloats({kVerb, "the output"}, *amax, 1);
    Amax(FlatView({kVerb, "the input"}, input, device), FloatView(largest, 0, device), execution);
  });
}

/// Computes scales from amaxes, item by item.
ffi::Error ScaleFromAmaxFFI(ffi::AnyBuffer amax, ffi::AnyBuffer old_scale, Result scale,
                            float fp8_max, float margin, Platform platform) {
  constexpr const char* kVerb = "scale_from_amax";
  return RunOn(platform, [&](const CallExecution& execution) {
    const std::size_t count = amax.element_count();
    const float* amaxes = Floats({kVerb, "amax"}, amax, count);
    const float* old_scales = Floats({kVerb, "scale"}, old_scale, count);
    float* scales = MutableFloats({kVerb, "the output"}, *scale, count);
    const float scaled_max = ScaledMax(kVerb, fp8_max, margin);
    Run(execution, ScaleFromAmaxStep{amaxes, old_scales, scales, count, scaled_max});
  });
}

ffi::Error UpdateDelayedScaleFFI(ffi::AnyBuffer amax_history, ffi::AnyBuffer old_scale,
                                 ffi::AnyBuffer new_amax, Result new_history, Result scale,
                                 std::string_view algo, float fp8_max, float margin,
                                 Platform platform) {
  constexpr const char* kVerb = "update_delayed_scale";
  return RunOn(platform, [&](const CallExecution& execution) {
    const std::size_t length = amax_history.element_count();
    if (length == 0) {
      throw InvalidArgument(fmt::format("{}: amax_history must have at least one item", kVerb));
    }
    const float* before = Floats({kVerb, "amax_history"}, amax_history, length);
    float* after = MutableFloats({kVerb, "the new history"}, *new_history, length);
    const float* newest = Floats({kVerb, "amax"}, new_amax, 1);
    const float scaled_max = ScaledMax(kVerb, fp8_max, margin);
    const bool uses_all = FindAmaxAlgorithm(algo) == AmaxAlgorithm::kMax;
    const float* so_far = Floats({kVerb, "scale"}, old_scale, 1);
    float* next = MutableFloats({kVerb, "the new scale"}, *scale, 1);
    Run(execution,
        DelayedScaleStep{before, newest, so_far, after, next, length, scaled_max, uses_all});
  });
}

auto BindRHTAmax() {
  return ffi::Ffi::Bind()
      .Arg<ffi::AnyBuffer>()  // input
      .Ret<ffi::AnyBuffer>()  // amax
      .Ret<ffi::AnyBuffer>()  // post_rht_amax
      .Attr<std::int64_t>("rht_matrix_random_sign_mask_t")
      .Attr<bool>("produce_regular_amax")
      .Attr<std::int64_t>("flatten_axis");
}
auto BindAmax() {
  return ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>();
}
auto BindScaleFromAmax() {
  return ffi::Ffi::Bind()
      .Arg<ffi::AnyBuffer>()  // amax
      .Arg<ffi::AnyBuffer>()  // old scale
      .Ret<ffi::AnyBuffer>()  // scale
      .Attr<float>("fp8_max")
      .Attr<float>("margin");
}
auto BindUpdateDelayedScale() {
  return ffi::Ffi::Bind()
      .Arg<ffi::AnyBuffer>()  // amax_history
      .Arg<ffi::AnyBuffer>()  // old scale
      .Arg<ffi::AnyBuffer>()  // the newest amax
      .Ret<ffi::AnyBuffer>()  // amax_history
      .Ret<ffi::AnyBuffer>()  // scale
      .Attr<std::string_view>("algo")
      .Attr<float>("fp8_max")
      .Attr<float>("margin");
}

}  // namespace

NF_EXPORT_HANDLERS(te_rht_amax_ffi, RHTAmaxFFI, BindRHTAmax());
NF_EXPORT_HANDLERS(nf_amax_ffi, AmaxFFI, BindAmax());
NF_EXPORT_HANDLERS(nf_scale_from_amax_ffi, ScaleFromAmaxFFI, BindScaleFromAmax(),
                   {ffi::Traits::kCmdBufferCompatible});
NF_EXPORT_HANDLERS(nf_update_delayed_scale_ffi, UpdateDelayedScaleFFI, BindUpdateDelayedScale(),
                   {ffi::Traits::kCmdBufferCompatible});

}  // namespace narrowfloat::xla_ffi
