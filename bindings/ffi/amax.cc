// SPDX-License-Identifier: Apache-2.0
// te_rht_amax_ffi, and the handlers that compute scales from amaxes. XLA's own code flushes
// subnormals, and its maximum keeps NaN, so it cannot compute either.
#include "narrowfloat/ops/amax.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "bindings/ffi/attributes.h"
#include "bindings/ffi/buffers.h"
#include "bindings/ffi/decoding.h"
#include "bindings/ffi/execution.h"
#include "narrowfloat/numerics/delayed_scale.h"
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

ffi::Error RHTAmaxFFI(ffi::ThreadPool threads, ffi::AnyBuffer input, Result amax,
                      Result post_rht_amax, std::int64_t sign_mask, bool produce_regular_amax,
                      std::int64_t flatten_axis) {
  constexpr const char* kVerb = "rht_amax";
  return RunOn(threads, [&](const Execution& execution) {
    const std::uint32_t mask = CheckedMask(sign_mask);
    const MatrixShape matrix = SplitShape(kVerb, ShapeOf(input), flatten_axis);
    const ConstTensorView view = MatrixView({kVerb, "the input"}, input, matrix);
    float* regular = MutableFloats({kVerb, "amax"}, *amax, 1);
    float* transformed = MutableFloats({kVerb, "post_rht_amax"}, *post_rht_amax, 1);
    *transformed = HadamardAmax(view, mask, execution);
    *regular = produce_regular_amax ? Amax(view, execution) : 0.0f;
  });
}

ffi::Error AmaxFFI(ffi::ThreadPool threads, ffi::AnyBuffer input, Result amax) {
  constexpr const char* kVerb = "amax";
  return RunOn(threads, [&](const Execution& execution) {
    float* largest = MutableFloats({kVerb, "the output"}, *amax, 1);
    *largest = Amax(FlatView({kVerb, "the input"}, input), execution);
  });
}

/// Computes scales from amaxes, item by item.
ffi::Error ScaleFromAmaxFFI(ffi::ThreadPool threads, ffi::AnyBuffer amax, ffi::AnyBuffer old_scale,
                            Result scale, float fp8_max, float margin) {
  constexpr const char* kVerb = "scale_from_amax";
  return RunOn(threads, [&](const Execution&) {
    const std::size_t count = amax.element_count();
    const float* amaxes = Floats({kVerb, "amax"}, amax, count);
    const float* old_scales = Floats({kVerb, "scale"}, old_scale, count);
    float* scales = MutableFloats({kVerb, "the output"}, *scale, count);
    const float scaled_max = ScaledMax(kVerb, fp8_max, margin);
    for (std::size_t i = 0; i < count; ++i)
      scales[i] = DelayedScale(amaxes[i], scaled_max, old_scales[i]);
  });
}

/// Computes one step of delayed scaling as JAX's quantizers do: an amax of 0 is not special.
ffi::Error UpdateDelayedScaleFFI(ffi::ThreadPool threads, ffi::AnyBuffer amax_history,
                                 ffi::AnyBuffer old_scale, ffi::AnyBuffer new_amax,
                                 Result new_history, Result scale, std::string_view algo,
                                 float fp8_max, float margin) {
  constexpr const char* kVerb = "update_delayed_scale";
  return RunOn(threads, [&](const Execution&) {
    const std::size_t length = amax_history.element_count();
    if (length == 0) {
      throw InvalidArgument(fmt::format("{}: amax_history must have at least one item", kVerb));
    }
    const float* before = Floats({kVerb, "amax_history"}, amax_history, length);
    float* after = MutableFloats({kVerb, "the new history"}, *new_history, length);
    const float newest = *Floats({kVerb, "amax"}, new_amax, 1);
    const float scaled_max = ScaledMax(kVerb, fp8_max, margin);
    const bool all = FindAmaxAlgorithm(algo) == AmaxAlgorithm::kMax;
    float amax = newest;
    for (std::size_t i = 1; i < length; ++i) {
      if (all) amax = LargerAmax(amax, before[i]);
      after[i - 1] = before[i];
    }
    after[length - 1] = newest;
    after[0] = 0.0f;  // the same item, if there is one
    *MutableFloats({kVerb, "the new scale"}, *scale, 1) =
        DelayedScale(amax, scaled_max, *Floats({kVerb, "scale"}, old_scale, 1));
  });
}

auto BindRHTAmax() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()  // input
      .Ret<ffi::AnyBuffer>()  // amax
      .Ret<ffi::AnyBuffer>()  // post_rht_amax
      .Attr<std::int64_t>("rht_matrix_random_sign_mask_t")
      .Attr<bool>("produce_regular_amax")
      .Attr<std::int64_t>("flatten_axis");
}
auto BindAmax() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>();
}
auto BindScaleFromAmax() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()  // amax
      .Arg<ffi::AnyBuffer>()  // scale so far
      .Ret<ffi::AnyBuffer>()  // scale
      .Attr<float>("fp8_max")
      .Attr<float>("margin");
}
auto BindUpdateDelayedScale() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()  // amax_history
      .Arg<ffi::AnyBuffer>()  // scale so far
      .Arg<ffi::AnyBuffer>()  // the newest amax
      .Ret<ffi::AnyBuffer>()  // amax_history
      .Ret<ffi::AnyBuffer>()  // scale
      .Attr<std::string_view>("algo")
      .Attr<float>("fp8_max")
      .Attr<float>("margin");
}

}  // namespace

NF_EXPORT_HANDLER(te_rht_amax_ffi, RHTAmaxFFI, BindRHTAmax());
NF_EXPORT_HANDLER(nf_amax_ffi, AmaxFFI, BindAmax());
NF_EXPORT_HANDLER(nf_scale_from_amax_ffi, ScaleFromAmaxFFI, BindScaleFromAmax());
NF_EXPORT_HANDLER(nf_update_delayed_scale_ffi, UpdateDelayedScaleFFI, BindUpdateDelayedScale());

}  // namespace narrowfloat::xla_ffi
