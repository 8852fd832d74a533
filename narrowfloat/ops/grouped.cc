// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/grouped.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/strided_rows.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr const char* kVerb = "grouped_quantize";

void CheckSizes(std::span<const std::int64_t> rows, std::size_t outs, std::size_t total) {
  if (rows.size() != outs) {
    throw InvalidArgument(fmt::format("{}: needs an output for each of the {} groups, got {}",
                                      kVerb, rows.size(), outs));
  }
  std::size_t sum = 0;
  for (std::size_t g = 0; g < rows.size(); ++g) {
    if (rows[g] < 0) {
      throw InvalidArgument(
          fmt::format("{}: group {} must have 0 rows or more, got {}", kVerb, g, rows[g]));
    }
    const auto count = static_cast<std::size_t>(rows[g]);
    if (count > total - sum) {
      throw InvalidArgument(
          fmt::format("{}: group {} must end within the input's {} rows", kVerb, g, total));
    }
    sum += count;
  }
  if (sum != total) {
    throw InvalidArgument(fmt::format(
        "{}: the groups must have the input's {} rows together, got {}", kVerb, total, sum));
  }
}

/// Returns rows from `first` on as a tensor of their own.
ConstTensorView GroupView(const ConstTensorView& in, const StridedRows<const std::byte>& rows,
                          std::size_t first, const Shape& shape) {
  const auto item = static_cast<std::ptrdiff_t>(ItemSize(in.dtype));
  ConstTensorView group{nullptr, in.dtype, shape, {rows.matrix.row_stride, item}, in.device};
  if (FlattenShape(shape).Size() > 0) group.data = rows.matrix.Row(first);
  return group;
}

void CheckOutput(const ConstTensorView& in, const QuantizedView& out, std::size_t group) {
  if (out.shape != in.shape) {
    throw InvalidArgument(
        fmt::format("{}: the output of group {} must have shape {} as the group has, got {}", kVerb,
                    group, ShapeText(in.shape), ShapeText(out.shape)));
  }
  CheckBuffers(kVerb, out);
  ValidateForQuantize(out.spec);
}

void CheckGroupIsDisjoint(const Extent& input, const QuantizedView& out, std::size_t group) {
  for (const TensorView& buffer : out.buffers) {
    if (!input.Overlaps(ExtentOf(buffer))) continue;
    RefuseOverlap(kVerb, fmt::format("buffers of group {}", group), "the input");
  }
}

/// Quantizes the groups after the checks.
void QuantizeGroups(std::span<const ConstTensorView> ins, std::span<const QuantizedView> outs,
                    const Execution& execution) {
  // Many groups run in parallel; few groups leave the threads to each one's tiles.
  const bool apart = ins.size() >= 2 * ThreadCount(execution);
  Execution inner = execution;
  if (apart)
    inner = {.threads = 1,
             .noop = execution.noop,
             .kernels = execution.kernels,
             .stores = execution.stores};
  const auto quantize = [&](std::size_t g) {
    QuantizedView out = outs[g];
    if (out.spec.stochastic_rounding) out.spec.offset += g;
    Quantize(ins[g], out, inner);
  };
  if (apart) return ParallelFor(execution, ins.size(), quantize);
  for (std::size_t g = 0; g < ins.size(); ++g) quantize(g);
}

}  // namespace

void GroupedQuantize(const ConstTensorView& in, std::span<const std::int64_t> rows,
                     std::span<const QuantizedView> outs, const Execution& execution) {
  StridedRows<const std::byte> input;
  FillRows(kVerb, "the input", in, input);
  CheckSizes(rows, outs.size(), input.shape.rows);
  if (input.matrix.row_offsets != nullptr) {
    throw InvalidArgument(
        fmt::format("{}: the input's rows must be a constant distance apart", kVerb));
  }
  std::vector<ConstTensorView> groups;
  const Extent whole = ExtentOf(in);
  std::size_t first = 0;
  for (std::size_t g = 0; g < rows.size(); ++g) {
    const Shape shape{rows[g], static_cast<std::int64_t>(input.shape.cols)};
    groups.push_back(GroupView(in, input, first, shape));
    CheckOutput(groups.back(), outs[g], g);
    CheckGroupIsDisjoint(whole, outs[g], g);
    first += static_cast<std::size_t>(rows[g]);
  }
  QuantizeGroups(groups, outs, execution);
}

void GroupedQuantize(std::span<const ConstTensorView> ins, std::span<const QuantizedView> outs,
                     const Execution& execution) {
  if (ins.size() != outs.size()) {
    throw InvalidArgument(fmt::format("{}: needs an output for each of the {} groups, got {}",
                                      kVerb, ins.size(), outs.size()));
  }
  Extent hull;  // of all inputs: a buffer outside overlaps none
  for (std::size_t g = 0; g < ins.size(); ++g) {
    StridedRows<const std::byte> input;
    FillRows(kVerb, "a group", ins[g], input);
    CheckOutput(ins[g], outs[g], g);
    const Extent own = ExtentOf(ins[g]);
    if (own.begin == own.end) continue;
    if (hull.begin == hull.end) hull = own;
    hull = {std::min(hull.begin, own.begin), std::max(hull.end, own.end)};
  }
  for (std::size_t g = 0; g < outs.size(); ++g) {
    const bool near = std::ranges::any_of(
        outs[g].buffers, [&](const TensorView& buffer) { return hull.Overlaps(ExtentOf(buffer)); });
    for (std::size_t i = 0; near && i < ins.size(); ++i)
      CheckGroupIsDisjoint(ExtentOf(ins[i]), outs[g], g);
  }
  QuantizeGroups(ins, outs, execution);
}

std::vector<QuantizedView> BindGroups(const GroupedPlan& plan,
                                      const std::array<std::byte*, kRoleCount>& packed) {
  std::vector<QuantizedView> views;
  for (std::size_t g = 0; g < plan.shapes.size(); ++g) {
    QuantizedView& view = views.emplace_back(QuantizedView{plan.spec, plan.shapes[g], {}});
    for (const PackedBuffer& buffer : plan.buffers) {
      const GroupSlice& slice = buffer.groups[g];
      const DType dtype = buffer.whole.dtype;
      std::byte* base = packed[static_cast<std::size_t>(buffer.whole.storage)];
      view[buffer.whole.role] = {
          base + slice.offset * ItemSize(dtype), dtype, slice.shape, {}, Device::kCpu};
    }
  }
  return views;
}

}  // namespace narrowfloat
