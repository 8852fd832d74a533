// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/quantize_run.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/ops/cpu/amax.h"
#include "narrowfloat/ops/cpu/hadamard.h"
#include "narrowfloat/ops/cpu/kernel_arguments.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/tensor/float_environment.h"

namespace narrowfloat {
namespace {

using TensorScaleFn = BlockScale (*)(float amax, const ScaleOptions& options) noexcept;

/// Functions that return a tensor's one scale, for whole-tensor schemes; null for other schemes.
constexpr auto kTensorScale = ArrayOf(AllSchemes{}, []<class S>() -> TensorScaleFn {
  if constexpr (WholeTensorScheme<S>) {
    return [](float amax, const ScaleOptions& options) noexcept {
      return S::ScaleBlock(amax, S::Prepare(amax, options));
    };
  } else {
    return nullptr;
  }
});

/// Limit of a tile's rows if its driver keeps the codes of a cache line until later rows complete
/// it. With 1024, blocks of 128 took 1.1 times as long in both directions.
constexpr std::size_t kRowsOfHeldLines = 2048;

void StoreFloat(const TensorView& buffer, float value) {
  if (buffer.data != nullptr) std::memcpy(buffer.data, &value, sizeof value);
}

void StoreTensorScale(const QuantizedView& out, const BlockScale& scale) {
  StoreFloat(out[Role::kScale], scale.scale);
  StoreFloat(out[Role::kRowwiseScaleInv], std::bit_cast<float>(scale.scale_inv));
  StoreFloat(out[Role::kColumnwiseScaleInv], std::bit_cast<float>(scale.scale_inv));
}

void ZeroPadding(const QuantizedView& out, Role role, Direction direction, MatrixShape matrix) {
  const ScaleGrid grid = MakeScaleGrid(*out.spec.scheme, direction, matrix);
  if (grid.Items() == grid.lines * grid.blocks || out[role].data == nullptr) return;
  std::memset(out[role].data, 0, grid.Items() * ItemSize(out[role].dtype));
}

QuantizeArgs MakeArgs(const StridedRows<const std::byte>& rows, DType dtype,
                      const QuantizedView& out) {
  QuantizeArgs args{};
  const QuantSpec& spec = out.spec;
  args.scheme = SchemeIndex(*spec.scheme);
  args.dtype = dtype;
  args.in = rows.matrix;
  args.shape = rows.shape;
  args.options = ScaleOptionsOf(spec, dtype);
  if (spec.rowwise) args.rowwise = BuffersOf<std::byte>(out, Direction::kRowwise);
  if (spec.columnwise) args.columnwise = BuffersOf<std::byte>(out, Direction::kColumnwise);
  if (spec.stochastic_rounding) args.rounding = Rounding::kStochastic;
  args.random = {spec.seed, spec.offset};
  return args;
}

}  // namespace

QuantizeRun::QuantizeRun(const ConstTensorView& in, const QuantizedView& out,
                         const Execution& execution)
    : in_(in),
      out_(out),
      execution_(execution),
      spec_(out.spec),
      kernels_(execution.Kernels()),
      rows_(in) {
  ThreadCount(execution);  // throws before anything is written
}

std::span<const Direction> QuantizeRun::Passes() const {
  static constexpr Direction kEach[] = {Direction::kRowwise, Direction::kColumnwise};
  static constexpr Direction kJoint[] = {Direction::kBoth};
  if (!spec_.columnwise) return std::span(kEach).first(1);
  if (!spec_.rowwise) return std::span(kEach).last(1);
  const SchemeInfo& scheme = *spec_.scheme;
  const bool joins =
      JoinsDirections(scheme.block, scheme.element_bits, scheme.layout.columnwise_transposed);
  return joins && (kernels_.joins_partial_lines || RowsFillLines())
             ? std::span<const Direction>(kJoint)
             : std::span(kEach);
}

bool QuantizeRun::RowsFillLines() const {
  const SchemeInfo& scheme = *spec_.scheme;
  if (!scheme.layout.columnwise_transposed || !BypassesCaches()) return true;
  const auto rows = BuffersOf<std::byte>(out_, Direction::kRowwise);
  return rows.code_stride % kLineBytes == 0 && !CutsLines(rows);
}

std::size_t QuantizeRun::RowUnit(Direction direction) const {
  const std::size_t rows = narrowfloat::RowUnit(*spec_.scheme, Direction::kRowwise);
  if (direction == Direction::kRowwise) return rows;
  return std::max(rows, narrowfloat::RowUnit(*spec_.scheme, Direction::kColumnwise));
}

std::size_t QuantizeRun::RowUnit() const {
  return RowUnit(Passes().front());
}

std::size_t QuantizeRun::ColUnit() const {
  return narrowfloat::ColUnit(*spec_.scheme);
}

bool QuantizeRun::HoldsLines(Direction direction) const {
  const SchemeInfo& scheme = *spec_.scheme;
  return args_.nontemporal && direction != Direction::kRowwise &&
         scheme.layout.columnwise_transposed && scheme.element_bits == 8 &&
         CutsLines(args_.columnwise);
}

bool QuantizeRun::CutsLines(const DirectionBuffers<std::byte>& codes) const {
  const SchemeInfo& scheme = *spec_.scheme;
  return CodesHead(codes, scheme, 1) != 0 && CodesHead(codes, scheme, scheme.block.cols) == 0;
}

bool QuantizeRun::BypassesCaches() const {
  return narrowfloat::BypassesCaches(execution_, CodeBytes(*spec_.scheme, rows_.shape.Size()));
}

TileGrid QuantizeRun::Grid(Direction direction) const {
  const SchemeInfo& scheme = *spec_.scheme;
  // Drivers of rows and of patches need only a part of a tile in a cache at a time.
  const bool by_parts = direction == Direction::kRowwise || scheme.layout.columnwise_transposed;
  const std::size_t elements = by_parts && scheme.block.rows <= 1
                                   ? StreamedTileElements(execution_, rows_.shape)
                                   : kTileElements;
  std::size_t rows = RowUnit(direction);
  if (HoldsLines(direction))
    rows = RoundUp(std::clamp(rows_.shape.rows, rows, kRowsOfHeldLines), rows);
  TileGrid grid = MakeTileGrid(rows_.shape, rows, ColUnit(), elements);
  if (!args_.nontemporal || direction == Direction::kRowwise) return grid;
  const bool joined = direction == Direction::kBoth;
  const auto head = [&](const DirectionBuffers<std::byte>& out, std::size_t unit) {
    return CodesHead(out, scheme, unit);
  };
  if (scheme.layout.columnwise_transposed) {
    grid.row_head = head(args_.columnwise, scheme.block.cols);
    if (joined) {
      grid.col_head = head(args_.rowwise, scheme.block.cols);
    } else if (rows_.matrix.row_offsets == nullptr) {
      // A patch reads a few lines of each row. Patches that began inside a line took up to twice as
      // long.
      grid.col_head = HeadOf(rows_.matrix.data, rows_.matrix.row_stride, ItemSize(in_.dtype) * 8,
                             scheme.block.rows);
    }
  } else {
    grid.col_head = head(args_.columnwise, joined ? scheme.block.cols : scheme.block.rows);
    // For blocks of one column, the driver quantizes the head separately, within its first strip. A
    // tile as narrow as the head would prefetch too few columns of the next tile.
    const bool driver_cuts = !joined && scheme.block.rows == 1;
    if (driver_cuts && grid.col_head > 0) grid.col_head += grid.col_step;
  }
  return grid;
}

bool QuantizeRun::NeedsAmaxPass() const {
  if (spec_.scheme->layout.amax == AmaxBuffers::kNone || spec_.row_scaled) return false;
  return !spec_.amax && !spec_.scale &&
         (spec_.rowwise || (!UsesHadamard() && !spec_.amax_columnwise));
}

void QuantizeRun::PrepareAmaxes(std::optional<float> known) {
  const AmaxBuffers buffers = spec_.scheme->layout.amax;
  if (buffers == AmaxBuffers::kNone) return;
  if (spec_.row_scaled) {
    if (spec_.rowwise)
      LineAmaxes(rows_, in_.dtype, Direction::kRowwise, out_[Role::kAmaxRowwise].data, execution_);
    if (spec_.columnwise)
      LineAmaxes(rows_, in_.dtype, Direction::kColumnwise, out_[Role::kAmaxColumnwise].data,
                 execution_);
    return;
  }
  float amax = spec_.amax.value_or(0.0f);
  if (NeedsAmaxPass()) amax = known ? *known : AmaxOfRows(rows_, in_.dtype, execution_);
  args_.rowwise.amax = args_.columnwise.amax = amax;
  if (spec_.amax_columnwise) {
    args_.columnwise.amax = *spec_.amax_columnwise;
  } else if (UsesHadamard() && !spec_.amax) {
    args_.columnwise.amax = TransformedAmax(rows_, in_.dtype, SignMask(), execution_);
  }
  StoreFloat(out_[Role::kAmaxRowwise], args_.rowwise.amax);
  StoreFloat(out_[Role::kAmaxColumnwise], args_.columnwise.amax);
}

void QuantizeRun::Prepare(std::optional<float> amax) {
  const FloatEnvironment environment;
  const SchemeInfo& scheme = *spec_.scheme;
  args_ = MakeArgs(rows_, in_.dtype, out_);
  PrepareAmaxes(amax);
  if (const TensorScaleFn scale_of = kTensorScale[args_.scheme]) {
    const BlockScale scale = scale_of(args_.rowwise.amax, args_.options);
    StoreTensorScale(out_, scale);
    args_.tensor_scale = scale.scale;
  }
  ZeroPadding(out_, Role::kRowwiseScaleInv, Direction::kRowwise, rows_.shape);
  ZeroPadding(out_, Role::kColumnwiseScaleInv, Direction::kColumnwise, rows_.shape);
  measures_ = scheme.layout.amax == AmaxBuffers::kOne && spec_.scale && !spec_.amax;
  args_.nontemporal = BypassesCaches();
}

void QuantizeRun::QuantizeTile(const Tile& tile) {
  QuantizeTile(tile, Passes().front());
}

void QuantizeRun::QuantizeTile(const Tile& tile, Direction direction) {
  QuantizeArgs args = args_;
  args.tile = tile;
  args.direction = direction;
  float measured = 0.0f;
  if (measures_) args.amax_out = &measured;
  if (direction == Direction::kColumnwise && UsesHadamard()) args.sign_mask = SignMask();
  kernels_.Quantize(args);
  measured_.Update(measured);
}

void QuantizeRun::QuantizeTiles(std::size_t first_pass) {
  for (const Direction direction : Passes().subspan(first_pass)) {
    const TileGrid grid = Grid(direction);
    ParallelFor(execution_, grid.Count(), [&](std::size_t i) { QuantizeTile(grid[i], direction); });
  }
}

void QuantizeRun::Finish() {
  if (measures_) StoreFloat(out_[Role::kAmaxRowwise], measured_.Get());
}

}  // namespace narrowfloat
