// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/amax.h"

#include "narrowfloat/ops/backend.h"
#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/ops/view_checks.h"

namespace narrowfloat {
namespace {

constexpr const char* kVerb = "amax";

}  // namespace

float Amax(const ConstTensorView& in, const Execution& execution) {
  CheckRows(kVerb, "the input", in);
  float amax = 0.0f;
  CallTensors call(kVerb);
  call.Read({"the input"}, in);
  call.Write({"the result"}, Extent{}, Device::kCpu);
  call.FindBackend().Amax(in, reinterpret_cast<std::byte*>(&amax), execution);
  return amax;
}

void Amax(const ConstTensorView& in, const TensorView& amax, const Execution& execution) {
  CheckRows(kVerb, "the input", in);
  CheckDense(kVerb, "the output", amax, DType::kFloat32, {1});
  CallTensors call(kVerb);
  call.Read({"the input"}, in);
  call.Write({"the output"}, amax);
  call.Check().Amax(in, amax.data, execution);
}

}  // namespace narrowfloat
