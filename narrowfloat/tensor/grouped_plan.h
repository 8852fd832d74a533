// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "narrowfloat/tensor/plan.h"

namespace narrowfloat {

/// A group's buffer: where it begins in the packed one, in items of the dtype, and its shape.
struct GroupSlice {
  std::size_t offset;
  Shape shape;
  bool operator==(const GroupSlice&) const = default;
};

/// The buffers of one role, of all groups one after another in one flat buffer.
struct PackedBuffer {
  BufferPlan whole;                // its shape is {items}
  std::vector<GroupSlice> groups;  // in the order of the groups
};

/// Where tensors lie that are quantized each as if it were alone, and packed.
struct GroupedPlan {
  QuantSpec spec;
  std::vector<Shape> shapes;  // of the groups
  std::vector<PackedBuffer> buffers;
};

/// Plans the packed buffers of groups of those shapes, empty ones included, which may differ in
/// every dimension.
/// Shapes: each group's buffer is the one of PlanQuantize and follows that of the group before it:
/// codes at the group's offset in elements (transposed ones too), scales at the sum of the padded
/// sizes, per-tensor scales and amaxes at the group's index. Where all groups have the same K, a
/// buffer of scales is at least as large as TransformerEngine's, which is sized before rows are
/// given to groups: that of all rows as one tensor, and, where the padding of a group of 128 rows
/// exceeds them, one such padding more for each group but one. Items that no group owns are zero by
/// convention, and the caller's to write.
/// Errors: as PlanQuantize, for the first group that it refuses.
/// Source: TransformerEngine common/common.h (GroupedTensor), common/cast/core/grouped_layout.cuh.
GroupedPlan PlanGroupedQuantize(const QuantSpec& spec, std::span<const Shape> groups);

}  // namespace narrowfloat
