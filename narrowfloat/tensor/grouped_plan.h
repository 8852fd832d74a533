// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "narrowfloat/tensor/plan.h"

namespace narrowfloat {

/// Place of one group's buffer in the packed one: first item, and shape.
struct GroupSlice {
  std::size_t offset;
  Shape shape;
  bool operator==(const GroupSlice&) const = default;
};

/// One role's buffers of all groups, adjacent in one flat buffer.
struct PackedBuffer {
  BufferPlan whole;                // its shape is {items}
  std::vector<GroupSlice> groups;  // in the order of the groups
};

/// Plan of tensors that are quantized independently and stored packed.
struct GroupedPlan {
  QuantSpec spec;
  std::vector<Shape> shapes;  // of the groups
  std::vector<PackedBuffer> buffers;
};

/// Plans the packed buffers of groups of those shapes. Groups may be empty, and may differ in every
/// dimension.
/// Shapes: each group's buffer has the shape that PlanQuantize gives, and follows the buffer of the
/// group before. Codes (transposed ones too) begin at the group's offset in elements, scales at the
/// sum of the padded sizes, per-tensor scales and amaxes at the group's index. If all groups have
/// the same K, a buffer of scales is at least as large as in TransformerEngine, where its size does
/// not depend on the groups' rows: it holds the scales of all rows as one tensor. A padding
/// multiple of rows that does not divide 128 adds its scales once for each group but one. Items
/// outside all groups are zero by convention; the caller writes them.
/// Errors: as PlanQuantize, for the first group with an invalid shape.
/// Source: TransformerEngine common/common.h (GroupedTensor), common/cast/core/grouped_layout.cuh.
GroupedPlan PlanGroupedQuantize(const QuantSpec& spec, std::span<const Shape> groups);

}  // namespace narrowfloat
