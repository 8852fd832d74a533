// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/hadamard.h"

#include <fmt/format.h>

#include "narrowfloat/ops/backend.h"
#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/ops/view_checks.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr const char* kVerb = "hadamard_transform";

/// Checks that the rows form complete groups, and that the mask has only bits of a group's rows.
void CheckGroups(const ConstTensorView& in, std::uint32_t sign_mask) {
  if (sign_mask >> kHadamardSize != 0) {
    throw InvalidArgument(
        fmt::format("{}: sign_mask must fit in {} bits, got {}", kVerb, kHadamardSize, sign_mask));
  }
  const std::size_t rows = FlattenShape(in.shape).rows;
  if (rows % kHadamardSize == 0) return;
  throw InvalidArgument(fmt::format("{}: the number of rows must be a multiple of {}, got {}",
                                    kVerb, kHadamardSize, rows));
}

}  // namespace

void HadamardTransform(const ConstTensorView& in, const TensorView& out, std::uint32_t sign_mask,
                       const Execution& execution) {
  CheckRows(kVerb, "the input", in);
  CheckRows(kVerb, "the output", out);
  if (out.shape != in.shape || out.dtype != in.dtype) {
    throw InvalidArgument(fmt::format("{}: the output must be {} of shape {}, got {} of {}", kVerb,
                                      DTypeName(in.dtype), ShapeText(in.shape),
                                      DTypeName(out.dtype), ShapeText(out.shape)));
  }
  CheckGroups(in, sign_mask);
  CallTensors call(kVerb);
  call.Read({"the input"}, in);
  call.Write({"the output"}, out);
  call.Check().HadamardTransform(in, out, sign_mask, execution);
}

float HadamardAmax(const ConstTensorView& in, std::uint32_t sign_mask, const Execution& execution) {
  CheckRows(kVerb, "the input", in);
  CheckGroups(in, sign_mask);
  float amax = 0.0f;
  CallTensors call(kVerb);
  call.Read({"the input"}, in);
  call.Write({"the result"}, Extent{}, Device::kCpu);
  call.FindBackend().HadamardAmax(in, sign_mask, reinterpret_cast<std::byte*>(&amax), execution);
  return amax;
}

void HadamardAmax(const ConstTensorView& in, const TensorView& amax, std::uint32_t sign_mask,
                  const Execution& execution) {
  CheckRows(kVerb, "the input", in);
  CheckGroups(in, sign_mask);
  CheckDense(kVerb, "the output", amax, DType::kFloat32, {1});
  CallTensors call(kVerb);
  call.Read({"the input"}, in);
  call.Write({"the output"}, amax);
  call.Check().HadamardAmax(in, sign_mask, amax.data, execution);
}

}  // namespace narrowfloat
