// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/grouped.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "narrowfloat/ops/backend.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/view_checks.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr const char* kVerb = "grouped_quantize";

/// Returns `count` rows from `first` on as a tensor.
ConstTensorView GroupView(const ConstTensorView& in, std::ptrdiff_t row_stride,
                          std::ptrdiff_t first, std::int64_t count) {
  const Shape shape{count, static_cast<std::int64_t>(FlattenShape(in.shape).cols)};
  const auto item = static_cast<std::ptrdiff_t>(ItemSize(in.dtype));
  ConstTensorView group{nullptr, in.dtype, shape, {row_stride, item}, in.device};
  if (FlattenShape(shape).Size() > 0) group.data = in.data + first * row_stride;
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

/// Quantizes the groups. Requires: each group has been checked. Checks overlaps between groups.
void QuantizeGroups(std::span<const ConstTensorView> ins, std::span<const QuantizedView> outs,
                    CallTensors& call, const Execution& execution) {
  for (std::size_t g = 0; g < outs.size(); ++g)
    AddOutputs(outs[g], {.name = "buffers", .group = g}, call);
  const Backend& backend = call.Check();
  const auto is_stochastic = [](const QuantizedView& out) { return out.spec.stochastic_rounding; };
  const auto changes = [&](const QuantizedView& out) {
    return is_stochastic(out) || HasUnplanned(out.spec, out);
  };
  if (std::ranges::none_of(outs, changes)) return backend.GroupedQuantize(ins, outs, execution);
  std::vector<QuantizedView> apart(outs.begin(), outs.end());
  for (std::size_t g = 0; g < apart.size(); ++g) {
    RemoveUnplanned(apart[g].spec, apart[g]);
    if (is_stochastic(apart[g])) apart[g].spec.offset += g;
  }
  backend.GroupedQuantize(ins, apart, execution);
}

}  // namespace

void CheckGroupRows(std::span<const std::int64_t> rows, const ConstTensorView& in) {
  const std::size_t total = FlattenShape(in.shape).rows;
  std::size_t sum = 0;
  for (std::size_t g = 0; g < rows.size(); ++g) {
    if (rows[g] < 0) {
      throw InvalidArgument(
          fmt::format("{}: group {} must have 0 rows or more, got {}", kVerb, g, rows[g]));
    }
    const auto count = static_cast<std::size_t>(rows[g]);
    if (count > total - sum) {
      throw InvalidArgument(
          fmt::format("{}: group {} must end within the input's {} rows, got an end at row {}",
                      kVerb, g, total, sum + count));
    }
    sum += count;
  }
  if (sum != total) {
    throw InvalidArgument(fmt::format(
        "{}: the groups must have the input's {} rows together, got {}", kVerb, total, sum));
  }
}

void GroupedQuantize(const ConstTensorView& in, std::span<const std::int64_t> rows,
                     std::span<const QuantizedView> outs, const Execution& execution) {
  CheckRows(kVerb, "the input", in);
  if (rows.size() != outs.size()) {
    throw InvalidArgument(fmt::format("{}: needs an output for each of the {} groups, got {}",
                                      kVerb, rows.size(), outs.size()));
  }
  CheckGroupRows(rows, in);
  const std::optional<std::ptrdiff_t> row_stride = RowStride(in);
  if (!row_stride) {
    throw InvalidArgument(
        fmt::format("{}: the input's rows must be a constant distance apart", kVerb));
  }
  std::vector<ConstTensorView> groups;
  std::ptrdiff_t first = 0;
  for (std::size_t g = 0; g < rows.size(); ++g) {
    groups.push_back(GroupView(in, *row_stride, first, rows[g]));
    CheckOutput(groups.back(), outs[g], g);
    first += static_cast<std::ptrdiff_t>(rows[g]);
  }
  CallTensors call(kVerb);
  call.Read({"the input"}, in);
  QuantizeGroups(groups, outs, call, execution);
}

void GroupedQuantize(std::span<const ConstTensorView> ins, std::span<const QuantizedView> outs,
                     const Execution& execution) {
  if (ins.size() != outs.size()) {
    throw InvalidArgument(fmt::format("{}: needs an output for each of the {} groups, got {}",
                                      kVerb, ins.size(), outs.size()));
  }
  CallTensors call(kVerb);
  for (std::size_t g = 0; g < ins.size(); ++g) {
    CheckRows(kVerb, fmt::format("group {}", g), ins[g]);
    CheckOutput(ins[g], outs[g], g);
    call.Read({"the input"}, ins[g]);
  }
  QuantizeGroups(ins, outs, call, execution);
}

std::vector<QuantizedView> BindGroups(const GroupedPlan& plan,
                                      const std::array<std::byte*, kRoleCount>& packed,
                                      Device device) {
  std::vector<QuantizedView> views;
  for (std::size_t g = 0; g < plan.shapes.size(); ++g) {
    QuantizedView& view = views.emplace_back(QuantizedView{plan.spec, plan.shapes[g], {}});
    for (const PackedBuffer& buffer : plan.buffers) {
      const GroupSlice& slice = buffer.groups[g];
      const DType dtype = buffer.whole.dtype;
      std::byte* base = packed[static_cast<std::size_t>(buffer.whole.storage)];
      view[buffer.whole.role] = {
          base + slice.offset * ItemSize(dtype), dtype, slice.shape, {}, device};
    }
  }
  return views;
}

}  // namespace narrowfloat
