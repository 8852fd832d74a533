// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/owned_buffers.h"

#include <fmt/format.h>

#include <algorithm>

#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

/// Returns true for codes and scale_inv, which every tensor needs; only quantization needs others.
bool IsRequired(Role role) {
  for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
    if (role == DataRole(direction) || role == ScaleInvRole(direction)) return true;
  }
  return false;
}

void CheckPlanned(const BufferPlan& planned, const OwnedTensor& buffer) {
  const std::string_view name = RoleName(planned.role);
  if (!buffer) {
    if (!IsRequired(planned.role)) return;
    throw InvalidArgument(fmt::format("quantized_tensor: {} is missing", name));
  }
  if (buffer.dtype() == planned.dtype && buffer.shape() == planned.shape) return;
  throw InvalidArgument(
      fmt::format("quantized_tensor: {} must be {} of shape {}, got {} of shape {}", name,
                  DTypeName(planned.dtype), ShapeText(planned.shape), DTypeName(buffer.dtype()),
                  ShapeText(buffer.shape())));
}

void CheckLinked(const BufferPlan& planned, const OwnedBuffers& buffers) {
  const OwnedTensor& buffer = BufferOf(buffers, planned.role);
  const OwnedTensor& stored = BufferOf(buffers, planned.storage);
  if (!buffer || buffer.SharesMemoryWith(stored)) return;
  throw InvalidArgument(fmt::format("quantized_tensor: {} must be the memory of {}",
                                    RoleName(planned.role), RoleName(planned.storage)));
}

}  // namespace

OwnedBuffers ShareBuffers(const OwnedBuffers& buffers) {
  OwnedBuffers shared;
  for (std::size_t i = 0; i < kRoleCount; ++i) shared[i] = buffers[i].Share();
  return shared;
}

void LinkShared(const std::vector<BufferPlan>& plan, OwnedBuffers& buffers) {
  for (const BufferPlan& planned : plan) {
    if (planned.storage == planned.role) continue;
    BufferOf(buffers, planned.role) = BufferOf(buffers, planned.storage).Share();
  }
}

void AllocateMissing(const std::vector<BufferPlan>& plan, OwnedBuffers& buffers) {
  for (const BufferPlan& planned : plan) {
    OwnedTensor& buffer = BufferOf(buffers, planned.role);
    if (planned.storage == planned.role && !buffer) buffer = {planned.dtype, planned.shape};
  }
  LinkShared(plan, buffers);
}

void CheckOwnedBuffers(const std::vector<BufferPlan>& plan, const OwnedBuffers& buffers) {
  for (const BufferPlan& planned : plan) {
    if (planned.storage == planned.role) {
      CheckPlanned(planned, BufferOf(buffers, planned.role));
    } else {
      CheckLinked(planned, buffers);
    }
  }
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    const auto role = static_cast<Role>(i);
    if (!buffers[i] || std::ranges::count(plan, role, &BufferPlan::role) > 0) continue;
    throw InvalidArgument(
        fmt::format("quantized_tensor: buffers must be those of the plan, got {}", RoleName(role)));
  }
}

}  // namespace narrowfloat
