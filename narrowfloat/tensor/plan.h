// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "narrowfloat/tensor/dtype.h"
#include "narrowfloat/tensor/quant_spec.h"
#include "narrowfloat/tensor/shape.h"

namespace narrowfloat {

/// Meaning of a buffer of a quantized tensor.
enum class Role : std::uint8_t {
  kRowwiseData,
  kRowwiseScaleInv,
  kColumnwiseData,
  kColumnwiseScaleInv,
  kScale,
  kAmaxRowwise,
  kAmaxColumnwise,
};
inline constexpr std::size_t kRoleCount = 7;

/// Returns the buffer's key in every language: "rowwise_data", ...
std::string_view RoleName(Role role);

/// One buffer of a quantized tensor. `storage` is the role of the memory that holds it, normally
/// its own. Per-tensor FP8 in both directions has one scale_inv, under the rowwise role.
struct BufferPlan {
  Role role;
  DType dtype;
  Shape shape;
  Role storage;
  bool operator==(const BufferPlan&) const = default;
};

/// Returns true if tensors quantized by `spec` have a buffer of that role. Requires: ValidateSpec
/// accepts the spec.
bool HasRole(const QuantSpec& spec, Role role);

/// Returns the buffers of a tensor of `shape` quantized by `spec`, in the order of Role. Allocates
/// none. Shapes: codes as the tensor; transposed codes with the last dimension first; packed codes
/// with the last dimension halved (if it is odd, all but the first are merged); scales padded as in
/// TransformerEngine. Errors: InvalidArgument for an invalid spec or shape.
std::vector<BufferPlan> PlanQuantize(const QuantSpec& spec, const Shape& shape);

/// Returns the bytes of a buffer.
std::size_t BufferBytes(const BufferPlan& buffer);

}  // namespace narrowfloat
