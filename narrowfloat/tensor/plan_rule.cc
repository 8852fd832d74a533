// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/plan_rule.h"

#include <algorithm>
#include <numeric>

#include "narrowfloat/tensor/layout.h"

namespace narrowfloat {
namespace {

using Sizes = std::vector<SizeRule>;

/// Returns the dimensions that make up the rows (RowDimensions) or the columns.
std::vector<std::size_t> RowDimensions(std::size_t rank) {
  std::vector<std::size_t> rows(rank == 0 ? 0 : rank - 1);
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  return rows;
}
std::vector<std::size_t> ColumnDimensions(std::size_t rank) {
  return rank == 0 ? std::vector<std::size_t>{} : std::vector{rank - 1};
}

Sizes CodesRule(const SchemeInfo& scheme, Direction direction, std::size_t rank) {
  Sizes sizes;
  for (std::size_t i = 0; i < rank; ++i) sizes.push_back({{i}, 1, 1});
  if (direction == Direction::kColumnwise && scheme.layout.columnwise_transposed && rank > 1) {
    std::rotate(sizes.begin(), sizes.end() - 1, sizes.end());
  }
  if (!sizes.empty()) {
    sizes.back().divisor = static_cast<std::int64_t>(CodesPerByte(scheme.element_bits));
  }
  return sizes;
}

/// Returns the stored shape of MakeScaleGrid(), as rules over the tensor's dimensions.
Sizes ScaleSizes(const SchemeInfo& scheme, Direction direction, std::size_t rank) {
  if (scheme.HasOneScale()) return {{}};
  const SchemeLayout& layout = scheme.layout;
  const bool rowwise = direction == Direction::kRowwise;
  const auto rows = RowDimensions(rank), columns = ColumnDimensions(rank);
  const auto rule = [](std::vector<std::size_t> dimensions, auto divisor, auto multiple) {
    return SizeRule{std::move(dimensions), static_cast<std::int64_t>(divisor),
                    static_cast<std::int64_t>(multiple)};
  };
  Sizes sizes = {rule(rowwise ? rows : columns, layout.lines_per_scale, layout.line_multiple),
                 rule(rowwise ? columns : rows, scheme.block.cols, layout.block_multiple)};
  const ScaleOrder order = rowwise ? layout.rowwise_order : layout.columnwise_order;
  if (order != ScaleOrder::kLineMajor) std::swap(sizes[0], sizes[1]);
  return sizes;
}

Sizes SizesOf(const QuantSpec& spec, Role role, std::size_t rank) {
  switch (role) {
    case Role::kRowwiseData:
      return CodesRule(*spec.scheme, Direction::kRowwise, rank);
    case Role::kColumnwiseData:
      return CodesRule(*spec.scheme, Direction::kColumnwise, rank);
    case Role::kRowwiseScaleInv:
      return ScaleSizes(*spec.scheme, Direction::kRowwise, rank);
    case Role::kColumnwiseScaleInv:
      return ScaleSizes(*spec.scheme, Direction::kColumnwise, rank);
    case Role::kAmaxRowwise:
      return {{spec.row_scaled ? RowDimensions(rank) : std::vector<std::size_t>{}}};
    case Role::kAmaxColumnwise:
      return {{spec.row_scaled ? ColumnDimensions(rank) : std::vector<std::size_t>{}}};
    case Role::kScale:
      break;
  }
  return {{}};
}

}  // namespace

std::vector<BufferRule> PlanRules(const QuantSpec& spec, std::size_t rank) {
  std::vector<BufferRule> rules;
  // The list of buffers does not depend on the sizes. 0 is a multiple of every number.
  for (const BufferPlan& planned : PlanQuantize(spec, Shape(rank, 0))) {
    rules.push_back(
        {planned.role, planned.dtype, SizesOf(spec, planned.role, rank), planned.storage});
  }
  return rules;
}

}  // namespace narrowfloat
