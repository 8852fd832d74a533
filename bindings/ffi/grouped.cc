// SPDX-License-Identifier: Apache-2.0
// te_grouped_quantize_ffi and te_grouped_quantize_v2_ffi: quantizes groups of rows independently.
// The host reads the groups' sizes, because the shapes of the views depend on them. On CUDA a call
// therefore waits for the stream, as TransformerEngine's does.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "bindings/ffi/attributes.h"
#include "bindings/ffi/buffers.h"
#include "bindings/ffi/decoding.h"
#include "bindings/ffi/execution.h"
#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/grouped.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::xla_ffi {
namespace {

constexpr const char* kVerb = "grouped_quantize";

using Result = ffi::Result<ffi::AnyBuffer>;

/// Results of one direction, and the number of scales written so far.
struct DirectionResults {
  ffi::AnyBuffer data, scale_inv;
  const char* data_name;
  const char* scale_name;
  std::size_t used_scales = 0;
};

/// Memory for the scalars of all groups that the core stores in buffers. scale_inv has the order of
/// the result: first the groups that have rows.
struct GroupScalars {
  GroupScalars(const CallExecution& execution, std::size_t count)
      : floats(execution, 4 * count),
        scale(floats.data()),
        amax(scale + count),
        amax_columnwise(amax + count),
        scale_inv(amax_columnwise + count) {}
  ScratchFloats floats;
  float *scale, *amax, *amax_columnwise, *scale_inv;
};

template <class Item>
std::vector<Item> ItemsOnHost(const CallExecution& execution, const void* items,
                              std::size_t count) {
  std::vector<Item> host(count);
  if (count > 0) CopyToHost(execution, host.data(), items, count * sizeof(Item));
  return host;
}

/// Returns the groups' rows: the sizes if their sum is the matrix's rows, else slices of axis 0.
std::vector<std::int64_t> RowsOfGroups(const char* verb, const CallExecution& execution,
                                       const ffi::AnyBuffer& sizes, const Shape& shape,
                                       MatrixShape matrix) {
  CheckDType({verb, "group_sizes"}, sizes, ffi::S32);
  const auto items =
      ItemsOnHost<std::int32_t>(execution, sizes.untyped_data(), sizes.element_count());
  std::vector<std::int64_t> rows(items.begin(), items.end());
  const std::int64_t sum = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const auto total = static_cast<std::int64_t>(matrix.rows);
  if (sum == total || shape.front() == 0) return rows;
  const std::int64_t per_slice = total / shape.front();
  for (std::int64_t& size : rows) size *= per_slice;
  return rows;
}

/// Checks and returns the sum of the groups' rows. Errors: InvalidArgument if it is not the input's
/// number of rows; with `at_most`, if it is larger.
std::size_t SumOfRows(const char* verb, const std::vector<std::int64_t>& rows, MatrixShape matrix,
                      bool at_most) {
  std::int64_t sum = 0;
  for (std::size_t g = 0; g < rows.size(); ++g) {
    if (rows[g] < 0) {
      throw InvalidArgument(
          fmt::format("{}: group {} must have 0 rows or more, got {}", verb, g, rows[g]));
    }
    sum += rows[g];
  }
  const auto total = static_cast<std::int64_t>(matrix.rows);
  if (sum == total || (at_most && sum < total)) return static_cast<std::size_t>(sum);
  throw InvalidArgument(fmt::format(
      "{}: group_sizes must add up to the first dimension or to the {} rows, got a sum of {}", verb,
      total, sum));
}

void CheckDirection(DirectionResults& out, const SchemeInfo& scheme, std::size_t elements) {
  Codes({kVerb, out.data_name}, out.data, scheme, elements);
  CheckScaleDType({kVerb, out.scale_name}, out.scale_inv, scheme);
}

/// Returns the memory of the next group's scales.
std::byte* NextScales(DirectionResults& out, const BufferPlan& buffer) {
  const std::size_t count = FlattenShape(buffer.shape).Size();
  const std::size_t room = out.scale_inv.element_count();
  if (count > room - out.used_scales) {
    throw InvalidArgument(fmt::format("{}: {} must have room for {} items or more, got {}", kVerb,
                                      out.scale_name, out.used_scales + count, room));
  }
  auto* scales = static_cast<std::byte*>(out.scale_inv.untyped_data()) + out.used_scales;
  out.used_scales += count;
  return scales;
}

class Groups {
 public:
  Groups(const CallExecution& execution, const QuantSpec& spec, MatrixShape matrix,
         DirectionResults rowwise, DirectionResults columnwise)
      : execution_(execution),
        spec_(spec),
        cols_(matrix.cols),
        rowwise_(rowwise),
        columnwise_(columnwise) {
    if (spec.rowwise) CheckDirection(rowwise_, *spec.scheme, matrix.Size());
    if (spec.columnwise) CheckDirection(columnwise_, *spec.scheme, matrix.Size());
  }

  /// Returns views of the groups' outputs, adjacent in the results.
  std::vector<QuantizedView> Bind(const std::vector<std::int64_t>& rows,
                                  const std::vector<float>& scales, GroupScalars& scalars) {
    std::vector<QuantizedView> views;
    std::size_t first = 0;
    std::size_t full = 0,
                empty = CountFull(
                    rows);  // index of the next scale_inv of a group with rows, and of one without
    for (std::size_t g = 0; g < rows.size(); ++g) {
      QuantSpec spec = spec_;
      if (spec_.scheme->HasOneScale()) spec.scale = scales[g];
      const Shape shape{rows[g], static_cast<std::int64_t>(cols_)};
      float* scale_inv = scalars.scale_inv + (rows[g] > 0 ? full++ : empty++);
      const auto bytes_of = [&](const BufferPlan& buffer) {
        return Memory(buffer, CodeBytes(*spec.scheme, first * cols_), g, scalars, scale_inv);
      };
      views.push_back(BindBuffers<QuantizedView>(spec, shape, bytes_of, execution_.device));
      first += static_cast<std::size_t>(rows[g]);
    }
    return views;
  }

  /// Zeroes the items that no group has written, and stores the groups' one-per-tensor scales,
  /// first those of groups with rows: the grouped GEMMs read this order.
  void Finish(const std::vector<std::int64_t>& rows, std::size_t used_rows,
              const GroupScalars& scalars) {
    for (DirectionResults* out : {&rowwise_, &columnwise_}) {
      const bool present = out == &rowwise_ ? spec_.rowwise : spec_.columnwise;
      ZeroFrom(execution_, out->data, present ? CodeBytes(*spec_.scheme, used_rows * cols_) : 0);
      if (spec_.scheme->HasOneScale()) StoreScales(*out, CountFull(rows), scalars);
      ZeroFrom(execution_, out->scale_inv,
               out->used_scales * ffi::ByteWidth(out->scale_inv.element_type()));
    }
  }

 private:
  /// Returns the number of groups that have rows.
  static std::size_t CountFull(const std::vector<std::int64_t>& rows) {
    return rows.size() - static_cast<std::size_t>(std::ranges::count(rows, 0));
  }

  std::byte* Memory(const BufferPlan& buffer, std::size_t offset, std::size_t group,
                    const GroupScalars& scalars, float* scale_inv) {
    const auto bytes = [](float* number) { return reinterpret_cast<std::byte*>(number); };
    switch (buffer.role) {
      case Role::kRowwiseData:
        return static_cast<std::byte*>(rowwise_.data.untyped_data()) + offset;
      case Role::kColumnwiseData:
        return static_cast<std::byte*>(columnwise_.data.untyped_data()) + offset;
      case Role::kRowwiseScaleInv:
        return spec_.scheme->HasOneScale() ? bytes(scale_inv) : NextScales(rowwise_, buffer);
      case Role::kColumnwiseScaleInv:
        return spec_.scheme->HasOneScale() ? bytes(scale_inv) : NextScales(columnwise_, buffer);
      case Role::kScale:
        return bytes(scalars.scale + group);
      case Role::kAmaxColumnwise:
        // Both directions share one amax, unless each direction has its own.
        if (NeedsAmax(*spec_.scheme)) return bytes(scalars.amax_columnwise + group);
        break;
      case Role::kAmaxRowwise:
        break;
    }
    return bytes(scalars.amax + group);
  }

  void StoreScales(DirectionResults& out, std::size_t count, const GroupScalars& scalars) const {
    if (out.scale_inv.element_type() != ffi::F32) return;
    out.used_scales = std::min(count, out.scale_inv.element_count());
    CopyBytes(execution_, out.scale_inv.untyped_data(), scalars.scale_inv,
              out.used_scales * sizeof(float));
  }

  const CallExecution& execution_;
  const QuantSpec& spec_;
  const std::size_t cols_;
  DirectionResults rowwise_, columnwise_;
};

struct GroupedCall {
  ffi::AnyBuffer input, scale, group_sizes;
  Result rowwise_data, columnwise_data, rowwise_scale_inv, columnwise_scale_inv, amax;
  QuantizeAttributes attributes;
  std::int64_t flatten_axis;
  bool at_most;  // the groups may have fewer rows than the input
};

/// Quantizes the groups and returns their rows.
std::vector<std::int64_t> QuantizeGroups(GroupedCall& call, const CallExecution& execution) {
  const Shape shape = ShapeOf(call.input);
  const MatrixShape matrix = SplitShape(kVerb, shape, call.flatten_axis);
  const bool rowwise = call.attributes.q_layout != QuantizeLayout::COLWISE;
  const std::string_view element =
      ElementOf({kVerb, "the output"}, rowwise ? *call.rowwise_data : *call.columnwise_data);
  QuantSpec spec = MakeSpec(kVerb, call.attributes, element);
  spec.swizzled = spec.scheme->layout.swizzles;
  std::vector<std::int64_t> rows = RowsOfGroups(kVerb, execution, call.group_sizes, shape, matrix);
  const std::size_t used = SumOfRows(kVerb, rows, matrix, call.at_most);
  const bool one_scale = spec.scheme->HasOneScale();
  std::vector<float> scales;
  if (one_scale) {
    const float* items = Floats({kVerb, "scale"}, call.scale, rows.size());
    scales = ItemsOnHost<float>(execution, items, rows.size());
  }

  GroupScalars scalars(execution, rows.size());
  Groups groups(
      execution, spec, matrix,
      {*call.rowwise_data, *call.rowwise_scale_inv, "rowwise data", "rowwise scale_inv"},
      {*call.columnwise_data, *call.columnwise_scale_inv, "colwise data", "colwise scale_inv"});
  AdviseHugePages(*call.rowwise_data, execution.device);
  AdviseHugePages(*call.columnwise_data, execution.device);
  const std::vector<QuantizedView> views = groups.Bind(rows, scales, scalars);
  const ConstTensorView view =
      MatrixView({kVerb, "the input"}, call.input, {used, matrix.cols}, execution.device);
  GroupedQuantize(view, rows, views, execution);
  groups.Finish(rows, used, scalars);
  const bool per_direction = NeedsAmax(*spec.scheme);
  if (one_scale || per_direction) {
    // Without a transform the amaxes of both directions are the same.
    const bool columns_alone = per_direction && !spec.rowwise;
    float* amaxes = MutableFloats({kVerb, "amax"}, *call.amax, rows.size());
    CopyBytes(execution, amaxes, columns_alone ? scalars.amax_columnwise : scalars.amax,
              rows.size() * sizeof(float));
  } else {
    ZeroFrom(execution, *call.amax);
  }
  return rows;
}

ffi::Error GroupedQuantizeFFI(ffi::AnyBuffer input, ffi::AnyBuffer scale,
                              ffi::AnyBuffer group_sizes, Result rowwise_data,
                              Result columnwise_data, Result rowwise_scale_inv,
                              Result columnwise_scale_inv, Result amax, Result /*unused*/,
                              ScalingMode scaling_mode, QuantizeLayout q_layout,
                              std::int64_t flatten_axis, Platform platform) {
  return RunOn(platform, [&](const CallExecution& execution) {
    GroupedCall call{input,
                     scale,
                     group_sizes,
                     rowwise_data,
                     columnwise_data,
                     rowwise_scale_inv,
                     columnwise_scale_inv,
                     amax,
                     {scaling_mode, q_layout},
                     flatten_axis,
                     false};
    QuantizeGroups(call, execution);
  });
}

/// Stores the groups' numbers of rows, then each group's first element, and the end of the last.
void StoreOffsets(const CallExecution& execution, ffi::AnyBuffer& workspace,
                  const std::vector<std::int64_t>& rows, std::size_t cols) {
  std::vector<std::int64_t> words(rows);
  words.push_back(0);
  for (const std::int64_t count : rows)
    words.push_back(words.back() + count * static_cast<std::int64_t>(cols));
  CheckDType({kVerb, "workspace"}, workspace, ffi::U8);
  CheckCount({kVerb, "workspace"}, workspace, words.size() * sizeof words[0]);
  CopyFromHost(execution, workspace.untyped_data(), words.data(), words.size() * sizeof words[0]);
}

ffi::Error GroupedQuantizeV2FFI(ffi::AnyBuffer input, ffi::AnyBuffer scale,
                                ffi::AnyBuffer group_sizes, Result rowwise_data,
                                Result columnwise_data, Result rowwise_scale_inv,
                                Result columnwise_scale_inv, Result amax, Result workspace,
                                QuantizeLayout q_layout, std::int64_t flatten_axis,
                                Platform platform) {
  return RunOn(platform, [&](const CallExecution& execution) {
    GroupedCall call{input,
                     scale,
                     group_sizes,
                     rowwise_data,
                     columnwise_data,
                     rowwise_scale_inv,
                     columnwise_scale_inv,
                     amax,
                     {ScalingMode::MXFP8_1D_SCALING, q_layout},
                     flatten_axis,
                     true};
    const std::vector<std::int64_t> rows = QuantizeGroups(call, execution);
    const std::size_t cols = SplitShape(kVerb, ShapeOf(input), flatten_axis).cols;
    StoreOffsets(execution, *workspace, rows, cols);
  });
}

/// Computes the amax of each group.
ffi::Error GroupedAmaxFFI(ffi::AnyBuffer input, ffi::AnyBuffer group_sizes, Result amax,
                          Platform platform) {
  return RunOn(platform, [&](const CallExecution& execution) {
    constexpr const char* kAmaxVerb = "grouped_amax";
    const Shape shape = ShapeOf(input);
    const MatrixShape matrix =
        SplitShape(kAmaxVerb, shape, static_cast<std::int64_t>(shape.size()) - 1);
    const std::vector<std::int64_t> rows =
        RowsOfGroups(kAmaxVerb, execution, group_sizes, shape, matrix);
    SumOfRows(kAmaxVerb, rows, matrix, false);
    float* amaxes = MutableFloats({kAmaxVerb, "amax"}, *amax, rows.size());
    ConstTensorView group = MatrixView({kAmaxVerb, "the input"}, input, matrix, execution.device);
    for (std::size_t g = 0; g < rows.size(); ++g) {
      group.shape[0] = rows[g];
      Amax(group, FloatView(amaxes, g, execution.device), execution);
      group.data += static_cast<std::size_t>(rows[g]) * matrix.cols * ItemSize(group.dtype);
    }
  });
}

auto BindGroupedAmax() {
  return ffi::Ffi::Bind()
      .Arg<ffi::AnyBuffer>()   // input
      .Arg<ffi::AnyBuffer>()   // group_sizes
      .Ret<ffi::AnyBuffer>();  // amax
}
auto BindBuffersOf() {
  return ffi::Ffi::Bind()
      .Arg<ffi::AnyBuffer>()   // input
      .Arg<ffi::AnyBuffer>()   // scale
      .Arg<ffi::AnyBuffer>()   // group_sizes
      .Ret<ffi::AnyBuffer>()   // rowwise data
      .Ret<ffi::AnyBuffer>()   // colwise data
      .Ret<ffi::AnyBuffer>()   // rowwise scale_inv
      .Ret<ffi::AnyBuffer>()   // colwise scale_inv
      .Ret<ffi::AnyBuffer>()   // amax
      .Ret<ffi::AnyBuffer>();  // unused; the workspace of V2
}
auto Bind() {
  return BindBuffersOf()
      .Attr<ScalingMode>("scaling_mode")
      .Attr<QuantizeLayout>("q_layout")
      .Attr<std::int64_t>("flatten_axis");
}
auto BindV2() {
  return BindBuffersOf().Attr<QuantizeLayout>("q_layout").Attr<std::int64_t>("flatten_axis");
}

}  // namespace

NF_EXPORT_HANDLERS(nf_grouped_amax_ffi, GroupedAmaxFFI, BindGroupedAmax());
NF_EXPORT_HANDLERS(te_grouped_quantize_ffi, GroupedQuantizeFFI, Bind());
NF_EXPORT_HANDLERS(te_grouped_quantize_v2_ffi, GroupedQuantizeV2FFI, BindV2());

}  // namespace narrowfloat::xla_ffi
