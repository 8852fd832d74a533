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

/// What a buffer of a quantized tensor is for.
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

/// The buffer's key in every language: "rowwise_data", ...
std::string_view RoleName(Role role);

/// One buffer that quantizing fills. `storage` is the role whose memory holds it: its own, but for
/// per-tensor FP8 in both directions, where the columnwise scale_inv is the rowwise one.
struct BufferPlan {
  Role role;
  DType dtype;
  Shape shape;
  Role storage;
  bool operator==(const BufferPlan&) const = default;
};

/// Buffers that quantizing a tensor of `shape` by `spec` fills, in the order of Role. Touches no
/// memory, no device. Shapes: codes as the tensor, transposed ones with the last dimension first,
/// packed ones with the final one halved (an odd one is merged with those before it); scales padded
/// as TransformerEngine's. Errors: InvalidArgument if the spec or the shape is not valid.
std::vector<BufferPlan> PlanQuantize(const QuantSpec& spec, const Shape& shape);

/// Bytes of a buffer.
std::size_t BufferBytes(const BufferPlan& buffer);

}  // namespace narrowfloat
