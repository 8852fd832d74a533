// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/float_environment.h"
#include "narrowfloat/ops/input.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

TileGrid GridFor(const QuantSpec& spec, MatrixShape matrix) {
  const SchemeInfo& scheme = *spec.scheme;
  std::size_t rows = RowUnit(scheme, Direction::kRowwise);
  if (spec.columnwise) rows = std::max(rows, RowUnit(scheme, Direction::kColumnwise));
  return MakeTileGrid(matrix, rows, ColUnit(scheme));
}

Direction DirectionOf(const QuantSpec& spec) {
  if (spec.rowwise && spec.columnwise) return Direction::kBoth;
  return spec.rowwise ? Direction::kRowwise : Direction::kColumnwise;
}

using TensorScaleFn = BlockScale (*)(float amax, const ScaleOptions& options) noexcept;

template <Scheme S>
constexpr TensorScaleFn TensorScaleOf() {
  if constexpr (WholeTensorScheme<S>) {
    return [](float amax, const ScaleOptions& options) noexcept {
      return S::ScaleBlock(amax, S::Prepare(amax, options));
    };
  } else {
    return nullptr;
  }
}

template <class... S>
constexpr auto MakeTensorScales(TypeList<S...>) {
  return std::array<TensorScaleFn, sizeof...(S)>{TensorScaleOf<S>()...};
}

/// For schemes whose block is the tensor, the one scale; null for the others.
constexpr auto kTensorScale = MakeTensorScales(AllSchemes{});

void StoreFloat(const TensorView& buffer, float value) {
  if (buffer.data != nullptr) std::memcpy(buffer.data, &value, sizeof value);
}

void StoreTensorScale(const QuantizedView& out, float amax, const ScaleOptions& options) {
  const BlockScale scale = kTensorScale[SchemeIndex(*out.spec.scheme)](amax, options);
  StoreFloat(out[Role::kScale], scale.scale);
  StoreFloat(out[Role::kRowwiseScaleInv], std::bit_cast<float>(scale.scale_inv));
  StoreFloat(out[Role::kColumnwiseScaleInv], std::bit_cast<float>(scale.scale_inv));
}

void ZeroPadding(const QuantizedView& out, Role role, Direction direction, MatrixShape matrix) {
  const ScaleGrid grid = MakeScaleGrid(*out.spec.scheme, direction, matrix);
  if (grid.Items() == grid.lines * grid.blocks || out[role].data == nullptr) return;
  std::memset(out[role].data, 0, grid.Items() * ItemSize(out[role].dtype));
}

void CheckInput(const ConstTensorView& in, const QuantizedView& out) {
  if (in.shape != out.shape) {
    throw InvalidArgument(fmt::format("quantize: the output is for shape {}, the input has {}",
                                      ShapeText(out.shape), ShapeText(in.shape)));
  }
  const Extent input = ExtentOf(in);
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (!input.Overlaps(ExtentOf(out.buffers[i]))) continue;
    throw InvalidArgument(
        fmt::format("quantize: {} must not overlap the input", RoleName(static_cast<Role>(i))));
  }
}

QuantizeArgs MakeArgs(const Rows<const std::byte>& rows, const QuantizedView& out,
                      const ScaleOptions& options) {
  QuantizeArgs args{rows.matrix, rows.shape, {}, {}, {}, 0.0f, options};
  if (out.spec.rowwise) args.rowwise = BuffersOf<std::byte>(out, Direction::kRowwise);
  if (out.spec.columnwise) args.columnwise = BuffersOf<std::byte>(out, Direction::kColumnwise);
  return args;
}

/// Runs the slot over all tiles; their amax, if `measure`.
float RunTiles(QuantizeFn quantize, const QuantizeArgs& args, bool measure, const TileGrid& grid,
               const Execution& execution) {
  std::vector<float> amaxes(measure ? grid.Count() : 0);
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    QuantizeArgs task = args;
    task.tile = grid[i];
    if (measure) task.measured = &amaxes[i];
    quantize(task);
  });
  return amaxes.empty() ? 0.0f : *std::max_element(amaxes.begin(), amaxes.end());
}

}  // namespace

void Quantize(const ConstTensorView& in, const QuantizedView& out, const Execution& execution) {
  CheckBuffers("quantize", out);
  Rows<const std::byte> rows;
  FillRows("quantize", "the input", in, rows);
  CheckInput(in, out);
  if (execution.IsNoop()) return;

  const FloatEnvironment environment;
  const KernelTable& kernels = execution.kernels != nullptr ? *execution.kernels : ActiveKernels();
  const QuantSpec& spec = out.spec;
  const SchemeInfo& scheme = *spec.scheme;
  const auto type = static_cast<std::size_t>(in.dtype);
  const ScaleOptions options = ScaleOptionsOf(spec);
  const bool wants_amax = scheme.layout.amax != AmaxBuffers::kNone;
  const bool needs_amax_first = wants_amax && !spec.scale;
  QuantizeArgs args = MakeArgs(rows, out, options);
  if (spec.amax) {
    args.amax = *spec.amax;
  } else if (needs_amax_first) {
    args.amax = Amax(in, execution);
  }
  if (kTensorScale[SchemeIndex(scheme)] != nullptr) StoreTensorScale(out, args.amax, options);
  ZeroPadding(out, Role::kRowwiseScaleInv, Direction::kRowwise, rows.shape);
  ZeroPadding(out, Role::kColumnwiseScaleInv, Direction::kColumnwise, rows.shape);

  const bool measure = wants_amax && !spec.amax && !needs_amax_first;
  const QuantizeFn quantize =
      kernels.quantize[SchemeIndex(scheme)][static_cast<std::size_t>(DirectionOf(spec))][type];
  args.stream = BypassesCaches(execution, rows.shape.Size());
  const float measured = RunTiles(quantize, args, measure, GridFor(spec, rows.shape), execution);
  if (wants_amax) StoreFloat(out[Role::kAmaxRowwise], measure ? measured : args.amax);
}

}  // namespace narrowfloat
