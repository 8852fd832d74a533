// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/grouped_plan.h"

#include <algorithm>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/layout.h"

namespace narrowfloat {
namespace {

// If the groups' rows are known on the device only, each group has a multiple of this many rows.
constexpr std::size_t kGroupRows = 128;

/// The dimension of a scale grid that grows with a group's rows: its padding multiple, the rows per
/// item, and the items of the other dimension.
struct GridRows {
  std::size_t multiple, rows_per_item, others;
};

GridRows GridRowsOf(const SchemeInfo& scheme, Direction direction, const ScaleGrid& grid) {
  const SchemeLayout& layout = scheme.layout;
  if (direction == Direction::kRowwise)
    return {layout.line_multiple, layout.lines_per_scale, grid.padded_blocks};
  return {layout.block_multiple, scheme.block.cols, grid.padded_lines};
}

/// Returns the number of a direction's scales that fits any distribution of rows to groups.
std::size_t ScaleCapacity(const SchemeInfo& scheme, Direction direction, MatrixShape all,
                          std::size_t groups) {
  const ScaleGrid grid = MakeScaleGrid(scheme, direction, all);
  const GridRows rows = GridRowsOf(scheme, direction, grid);
  const bool fits = kGroupRows % (rows.multiple * rows.rows_per_item) == 0;
  return grid.Items() + (fits ? 0 : (groups - 1) * rows.multiple * rows.others);
}

/// Returns the shape of all groups as one matrix; 0x0 if their numbers of columns differ.
MatrixShape AsOneMatrix(std::span<const Shape> groups) {
  MatrixShape all{0, 0};
  for (const Shape& shape : groups) {
    const MatrixShape matrix = FlattenShape(shape);
    if (&shape != &groups.front() && matrix.cols != all.cols) return {0, 0};
    all = {all.rows + matrix.rows, matrix.cols};
  }
  return all;
}

bool IsScaleOf(Role role, Direction direction) {
  return role ==
         (direction == Direction::kRowwise ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv);
}

std::size_t ItemsOf(const Shape& shape) {
  return FlattenShape(shape).Size();
}

}  // namespace

GroupedPlan PlanGroupedQuantize(const QuantSpec& spec, std::span<const Shape> groups) {
  GroupedPlan plan{spec, {groups.begin(), groups.end()}, {}};
  for (const BufferPlan& buffer : PlanQuantize(spec, {0, 0}))
    plan.buffers.push_back({{buffer.role, buffer.dtype, {0}, buffer.storage}, {}});
  std::vector<std::size_t> ends(plan.buffers.size(), 0);
  for (const Shape& shape : groups) {
    const std::vector<BufferPlan> own = PlanQuantize(spec, shape);
    for (std::size_t i = 0; i < own.size(); ++i) {
      plan.buffers[i].groups.push_back({ends[i], own[i].shape});
      const std::size_t items = ItemsOf(own[i].shape);
      if (items > static_cast<std::size_t>(kMaxElements) - ends[i]) {
        throw InvalidArgument(
            "quantize: the groups together have more elements than memory can address");
      }
      ends[i] += items;
    }
  }
  const MatrixShape all = AsOneMatrix(groups);
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    BufferPlan& whole = plan.buffers[i].whole;
    std::size_t items = ends[i];
    for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
      if (!IsScaleOf(whole.role, direction) || spec.scheme->HasOneScale()) continue;
      if (all.Size() > 0)
        items = std::max(items, ScaleCapacity(*spec.scheme, direction, all, groups.size()));
    }
    whole.shape = {static_cast<std::int64_t>(items)};
  }
  return plan;
}

}  // namespace narrowfloat
