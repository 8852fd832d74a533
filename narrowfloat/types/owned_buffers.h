// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include "narrowfloat/tensor/plan.h"
#include "narrowfloat/types/owned_tensor.h"

namespace narrowfloat {

/// Buffers by role. Roles that the plan keeps in one place hold two handles on it.
using OwnedBuffers = std::array<OwnedTensor, kRoleCount>;

inline OwnedTensor& BufferOf(OwnedBuffers& buffers, Role role) {
  return buffers[static_cast<std::size_t>(role)];
}
inline const OwnedTensor& BufferOf(const OwnedBuffers& buffers, Role role) {
  return buffers[static_cast<std::size_t>(role)];
}

/// Handles on the same buffers.
OwnedBuffers ShareBuffers(const OwnedBuffers& buffers);

/// Points roles of one storage at the memory of that storage.
void LinkShared(const std::vector<BufferPlan>& plan, OwnedBuffers& buffers);

/// Allocates the planned buffers that are missing, and links shared ones.
void AllocateMissing(const std::vector<BufferPlan>& plan, OwnedBuffers& buffers);

/// Checks buffers that come from outside: codes and scale_inv must be there, all must be as
/// planned, and roles of one storage name one memory or only that storage is given. Errors:
/// InvalidArgument naming the first buffer that is not so.
void CheckOwnedBuffers(const std::vector<BufferPlan>& plan, const OwnedBuffers& buffers);

}  // namespace narrowfloat
