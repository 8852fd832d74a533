// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include "narrowfloat/tensor/plan.h"
#include "narrowfloat/types/owned_tensor.h"

namespace narrowfloat {

/// Buffers by role. Two roles with one storage in the plan are two handles to the same memory.
using OwnedBuffers = std::array<OwnedTensor, kRoleCount>;

inline OwnedTensor& BufferOf(OwnedBuffers& buffers, Role role) {
  return buffers[static_cast<std::size_t>(role)];
}
inline const OwnedTensor& BufferOf(const OwnedBuffers& buffers, Role role) {
  return buffers[static_cast<std::size_t>(role)];
}

/// Returns handles to the same buffers.
OwnedBuffers ShareBuffers(const OwnedBuffers& buffers);

/// Makes all roles with one storage refer to that storage's memory.
void LinkShared(const std::vector<BufferPlan>& plan, OwnedBuffers& buffers);

/// Allocates the planned buffers that are missing, and links shared ones.
void AllocateMissing(const std::vector<BufferPlan>& plan, OwnedBuffers& buffers);

/// Checks buffers of a caller: codes and scale_inv must be present, types and shapes must match the
/// plan. Roles with one storage must refer to the same memory, or only that storage is given.
/// Errors: InvalidArgument naming the first wrong buffer.
void CheckOwnedBuffers(const std::vector<BufferPlan>& plan, const OwnedBuffers& buffers);

}  // namespace narrowfloat
