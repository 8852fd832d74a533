// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/float_environment.h"
#include "narrowfloat/ops/hadamard.h"
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
  QuantizeArgs args{rows.matrix, rows.shape, {}, {}, {}, options, {}, {}};
  const QuantSpec& spec = out.spec;
  if (spec.rowwise) args.rowwise = BuffersOf<std::byte>(out, Direction::kRowwise);
  if (spec.columnwise) args.columnwise = BuffersOf<std::byte>(out, Direction::kColumnwise);
  if (spec.stochastic_rounding) args.rounding = Rounding::kStochastic;
  args.random = {spec.seed, spec.offset};
  return args;
}

/// What runs on each tile: both directions by one slot, but where the columnwise operand is another
/// matrix, its transform.
class TileQuantizer {
 public:
  TileQuantizer(const KernelTable& kernels, const QuantSpec& spec, DType dtype)
      : kernels_(kernels), spec_(spec), dtype_(dtype) {}

  void Run(const QuantizeArgs& args) const {
    if (!Transforms()) return Slot(DirectionOf(spec_))(args);
    if (spec_.rowwise) Slot(Direction::kRowwise)(args);
    QuantizeArgs transformed = args;
    transformed.in = Transform(args.in, args.tile);
    Slot(Direction::kColumnwise)(transformed);
  }
  /// Of one tile of the columnwise operand.
  float ColumnwiseAmax(const MatrixRows<const std::byte>& in, const Tile& tile) const {
    return kernels_.amax[Type()](Transform(in, tile), tile);
  }
  bool Transforms() const { return spec_.rht && spec_.columnwise; }

 private:
  std::size_t Type() const { return static_cast<std::size_t>(dtype_); }
  QuantizeFn Slot(Direction direction) const {
    return kernels_
        .quantize[SchemeIndex(*spec_.scheme)][static_cast<std::size_t>(direction)][Type()];
  }
  MatrixRows<const std::byte> Transform(const MatrixRows<const std::byte>& in,
                                        const Tile& tile) const {
    return TransformTile(kernels_, dtype_, in, tile,
                         static_cast<std::uint32_t>(spec_.rht_sign_mask));
  }

  const KernelTable& kernels_;
  const QuantSpec& spec_;
  DType dtype_;
};

/// Runs over all tiles; their amax, if `measure`.
float RunTiles(const TileQuantizer& quantizer, const QuantizeArgs& args, bool measure,
               const TileGrid& grid, const Execution& execution) {
  std::vector<float> amaxes(measure ? grid.Count() : 0);
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    QuantizeArgs task = args;
    task.tile = grid[i];
    if (measure) task.measured = &amaxes[i];
    quantizer.Run(task);
  });
  return amaxes.empty() ? 0.0f : *std::max_element(amaxes.begin(), amaxes.end());
}

float TransformedAmax(const TileQuantizer& quantizer, const QuantizeArgs& args,
                      const TileGrid& grid, const Execution& execution) {
  std::vector<float> amaxes(grid.Count());
  ParallelFor(execution, grid.Count(),
              [&](std::size_t i) { amaxes[i] = quantizer.ColumnwiseAmax(args.in, grid[i]); });
  return amaxes.empty() ? 0.0f : *std::max_element(amaxes.begin(), amaxes.end());
}

/// Finds the amaxes that the scales follow from, before the first code is written; those that
/// belong to buffers go there.
void PrepareAmaxes(const ConstTensorView& in, const QuantizedView& out,
                   const TileQuantizer& quantizer, const TileGrid& grid, QuantizeArgs& args,
                   const Execution& execution) {
  const QuantSpec& spec = out.spec;
  const AmaxBuffers buffers = spec.scheme->layout.amax;
  if (buffers == AmaxBuffers::kNone) return;
  if (spec.row_scaled) {
    if (spec.rowwise) LineAmaxes(in, Direction::kRowwise, out[Role::kAmaxRowwise].data, execution);
    if (spec.columnwise)
      LineAmaxes(in, Direction::kColumnwise, out[Role::kAmaxColumnwise].data, execution);
    return;
  }
  const bool transforms = quantizer.Transforms();
  float amax = spec.amax.value_or(0.0f);
  const bool asks = spec.rowwise || (!transforms && !spec.amax_columnwise);
  if (!spec.amax && !spec.scale && asks) amax = Amax(in, execution);
  args.rowwise.amax = args.columnwise.amax = amax;
  if (spec.amax_columnwise) {
    args.columnwise.amax = *spec.amax_columnwise;
  } else if (transforms && !spec.amax) {
    args.columnwise.amax = TransformedAmax(quantizer, args, grid, execution);
  }
  StoreFloat(out[Role::kAmaxRowwise], args.rowwise.amax);
  StoreFloat(out[Role::kAmaxColumnwise], args.columnwise.amax);
}

}  // namespace

void Quantize(const ConstTensorView& in, const QuantizedView& out, const Execution& execution) {
  CheckBuffers("quantize", out);
  const QuantSpec& spec = out.spec;
  ValidateForQuantize(spec);
  Rows<const std::byte> rows;
  FillRows("quantize", "the input", in, rows);
  CheckInput(in, out);
  if (execution.IsNoop()) return;

  const FloatEnvironment environment;
  const KernelTable& kernels = execution.kernels != nullptr ? *execution.kernels : ActiveKernels();
  const SchemeInfo& scheme = *spec.scheme;
  const TileQuantizer quantizer(kernels, spec, in.dtype);
  const TileGrid grid = GridFor(spec, rows.shape);
  QuantizeArgs args = MakeArgs(rows, out, ScaleOptionsOf(spec, in.dtype));
  PrepareAmaxes(in, out, quantizer, grid, args, execution);
  if (kTensorScale[SchemeIndex(scheme)] != nullptr)
    StoreTensorScale(out, args.rowwise.amax, args.options);
  ZeroPadding(out, Role::kRowwiseScaleInv, Direction::kRowwise, rows.shape);
  ZeroPadding(out, Role::kColumnwiseScaleInv, Direction::kColumnwise, rows.shape);

  // With a given scale the amax is only reported: it is found on the way.
  const bool measure = scheme.layout.amax == AmaxBuffers::kOne && spec.scale && !spec.amax;
  args.stream = BypassesCaches(execution, CodeBytes(scheme, rows.shape.Size()));
  const float measured = RunTiles(quantizer, args, measure, grid, execution);
  if (measure) StoreFloat(out[Role::kAmaxRowwise], measured);
}

}  // namespace narrowfloat
