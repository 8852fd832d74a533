// SPDX-License-Identifier: Apache-2.0
// te_dequantize_ffi for per-tensor FP8, and nf_dequantize_ffi for every scheme.
#include "narrowfloat/ops/dequantize.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "bindings/ffi/attributes.h"
#include "bindings/ffi/buffers.h"
#include "bindings/ffi/decoding.h"
#include "bindings/ffi/execution.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::xla_ffi {
namespace {

constexpr const char* kVerb = "dequantize";

using Result = ffi::Result<ffi::AnyBuffer>;

/// Binds codes, scales and amaxes of the spec's one direction. Other buffers stay absent.
ConstQuantizedView BindOperands(const QuantSpec& spec, MatrixShape matrix,
                                const ffi::AnyBuffer& data, const ffi::AnyBuffer& scale_inv,
                                const ffi::AnyBuffer& amax, Device device) {
  const SchemeInfo& scheme = *spec.scheme;
  const Shape shape{static_cast<std::int64_t>(matrix.rows), static_cast<std::int64_t>(matrix.cols)};
  const auto bytes_of = [&](const BufferPlan& buffer) -> const std::byte* {
    const std::size_t count = FlattenShape(buffer.shape).Size();
    switch (buffer.role) {
      case Role::kRowwiseData:
      case Role::kColumnwiseData:
        return Codes({kVerb, "data"}, data, scheme, matrix.Size());
      case Role::kRowwiseScaleInv:
      case Role::kColumnwiseScaleInv:
        return Scales({kVerb, "scale_inv"}, scale_inv, scheme, count);
      case Role::kAmaxRowwise:
      case Role::kAmaxColumnwise:
        if (!NeedsAmax(scheme)) return nullptr;
        return reinterpret_cast<const std::byte*>(Floats({kVerb, "amax"}, amax, count));
      case Role::kScale:
        break;
    }
    return nullptr;
  };
  return BindBuffers<ConstQuantizedView>(spec, shape, bytes_of, device);
}

ffi::Error DequantizeFFI(ffi::AnyBuffer data, ffi::AnyBuffer amax, ffi::AnyBuffer /*scale*/,
                         ffi::AnyBuffer scale_inv, Result output, Platform platform) {
  return RunOn(platform, [&](const CallExecution& execution) {
    const Device device = execution.device;
    const MatrixShape row{1, FlattenShape(ShapeOf(data)).Size()};
    const TensorView out = MutableMatrixView({kVerb, "the output"}, *output, row, device);
    if (row.cols == 0) return;
    QuantSpec spec;
    spec.scheme =
        &SchemeOf(kVerb, ScalingMode::DELAYED_TENSOR_SCALING, ElementOf({kVerb, "data"}, data));
    Dequantize(BindOperands(spec, row, data, scale_inv, amax, device), out, execution);
  });
}

ffi::Error DequantizeBySpecFFI(ffi::AnyBuffer data, ffi::AnyBuffer scale_inv, ffi::AnyBuffer amax,
                               Result output, std::string_view spec_text, std::int64_t flatten_axis,
                               Platform platform) {
  return RunOn(platform, [&](const CallExecution& execution) {
    const Device device = execution.device;
    const QuantSpec spec = ParseQuantSpec(spec_text);
    if (spec.rowwise && spec.columnwise) {
      throw InvalidArgument(fmt::format(
          "{}: spec must name one direction, the one that data holds, got '{}'", kVerb, spec_text));
    }
    const MatrixShape matrix = SplitShape(kVerb, ShapeOf(*output), flatten_axis);
    const TensorView out = MutableMatrixView({kVerb, "the output"}, *output, matrix, device);
    if (matrix.Size() == 0) return;
    Dequantize(BindOperands(spec, matrix, data, scale_inv, amax, device), out, execution);
  });
}

auto Bind() {
  return ffi::Ffi::Bind()
      .Arg<ffi::AnyBuffer>()   // data
      .Arg<ffi::AnyBuffer>()   // amax
      .Arg<ffi::AnyBuffer>()   // scale
      .Arg<ffi::AnyBuffer>()   // scale_inv
      .Ret<ffi::AnyBuffer>();  // output
}
auto BindBySpec() {
  return ffi::Ffi::Bind()
      .Arg<ffi::AnyBuffer>()  // data
      .Arg<ffi::AnyBuffer>()  // scale_inv
      .Arg<ffi::AnyBuffer>()  // amax
      .Ret<ffi::AnyBuffer>()  // output
      .Attr<std::string_view>("spec")
      .Attr<std::int64_t>("flatten_axis");
}

}  // namespace

NF_EXPORT_HANDLERS(te_dequantize_ffi, DequantizeFFI, Bind());
NF_EXPORT_HANDLERS(nf_dequantize_ffi, DequantizeBySpecFFI, BindBySpec());

}  // namespace narrowfloat::xla_ffi
