// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/dequantize.h"

#include <fmt/format.h>

#include "narrowfloat/ops/backend.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/ops/view_checks.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

/// Returns the distances between a view's items; 0 along dimensions of one item. Requires: the view
/// is not empty.
std::vector<std::ptrdiff_t> StridesOf(const ConstTensorView& view) {
  std::vector<std::ptrdiff_t> strides(view.shape.size());
  auto dense = static_cast<std::ptrdiff_t>(ItemSize(view.dtype));
  for (std::size_t i = strides.size(); i-- > 0; dense *= view.shape[i]) {
    if (view.shape[i] > 1) strides[i] = view.strides.empty() ? dense : view.strides[i];
  }
  return strides;
}

}  // namespace

void Dequantize(const ConstQuantizedView& in, const TensorView& out, const Execution& execution) {
  CallTensors call("dequantize");
  const Direction direction = AddDequantizing("dequantize", in, call);
  CheckRows("dequantize", "the output", out);
  if (out.shape != in.shape) {
    throw InvalidArgument(fmt::format("dequantize: the output must have shape {}, got {}",
                                      ShapeText(in.shape), ShapeText(out.shape)));
  }
  call.Write({"the output"}, out);
  call.Check().Dequantize(in, direction, out, execution);
}

void FakeQuantize(const ConstTensorView& in, const QuantSpec& spec, const TensorView& out,
                  const Execution& execution) {
  if (out.shape != in.shape) {
    throw InvalidArgument(fmt::format("fake_quantize: the output must have shape {}, got {}",
                                      ShapeText(in.shape), ShapeText(out.shape)));
  }
  PlanQuantize(spec, in.shape);  // throws if the spec or the shape is invalid
  ValidateForQuantize(spec);
  CheckRows("fake_quantize", "the input", in);
  CheckRows("fake_quantize", "the output", out);
  if (ExtentOf(in).Overlaps(ExtentOf(out))) {
    const bool same =
        out.data == in.data && out.dtype == in.dtype && StridesOf(out) == StridesOf(in);
    if (!same) {
      throw InvalidArgument("fake_quantize: the output must be the input or not overlap it");
    }
  }
  CallTensors call("fake_quantize");
  call.Read({"the input"}, in);
  call.Write({"the output"}, out);
  QuantSpec read = spec;  // if both directions are set, only the rowwise one
  if (spec.rowwise) read.columnwise = read.rht = false;
  call.FindBackend().FakeQuantize(in, read, out, execution);
}

}  // namespace narrowfloat
