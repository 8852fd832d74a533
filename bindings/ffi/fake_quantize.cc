// SPDX-License-Identifier: Apache-2.0
// nf_fake_quantize_ffi: quantizes by any spec and dequantizes again; returns no codes.
#include <cstdint>
#include <string_view>
#include <utility>

#include "bindings/ffi/attributes.h"
#include "bindings/ffi/buffers.h"
#include "bindings/ffi/decoding.h"
#include "bindings/ffi/execution.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/tensor/quant_spec.h"

namespace narrowfloat::xla_ffi {
namespace {

constexpr const char* kVerb = "fake_quantize";

ffi::Error FakeQuantizeFFI(ffi::AnyBuffer input, ffi::Result<ffi::AnyBuffer> output,
                           std::string_view spec_text, std::int64_t flatten_axis,
                           Platform platform) {
  return RunOn(platform, [&](const CallExecution& execution) {
    const Device device = execution.device;
    const QuantSpec spec = ParseQuantSpec(spec_text);
    const MatrixShape matrix = SplitShape(kVerb, ShapeOf(input), flatten_axis);
    const TensorView out = MutableMatrixView({kVerb, "the output"}, *output, matrix, device);
    if (matrix.Size() == 0) return;
    FakeQuantize(MatrixView({kVerb, "the input"}, input, matrix, device), spec, out, execution);
  });
}

auto Bind() {
  return ffi::Ffi::Bind()
      .Arg<ffi::AnyBuffer>()  // input
      .Ret<ffi::AnyBuffer>()  // output
      .Attr<std::string_view>("spec")
      .Attr<std::int64_t>("flatten_axis");
}

}  // namespace

NF_EXPORT_HANDLERS(nf_fake_quantize_ffi, FakeQuantizeFFI, Bind());

}  // namespace narrowfloat::xla_ffi
