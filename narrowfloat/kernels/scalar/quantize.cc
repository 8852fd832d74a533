// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/numerics/hadamard.h"
#include "narrowfloat/schemes/registry.h"

namespace narrowfloat {
namespace {

/// One direction of a call: its lines and its output buffers.
template <Scheme S, class T, Direction kDirection>
class DirectionQuantizer {
 public:
  DirectionQuantizer(const QuantizeArgs& args, const DirectionBuffers<std::byte>& out)
      : args_(args), out_(out) {}

  void Run() const {
    const Tile& tile = args_.tile;
    const LineRange range =
        kRowwise ? LineRange{tile.row_begin, tile.row_end, tile.col_begin, tile.col_end}
                 : LineRange{tile.col_begin, tile.col_end, tile.row_begin, tile.row_end};
    if constexpr (WholeTensorScheme<S>) {
      Encode(range, args_.tensor_scale);
    } else {
      // The scheme's block, with lines as rows.
      for (std::size_t line = range.line_begin; line < range.line_end; line += S::kBlock.rows) {
        const typename S::TensorState state = S::Prepare(out_.AmaxOf(line), args_.options);
        for (std::size_t pos = range.pos_begin; pos < range.pos_end; pos += S::kBlock.cols) {
          QuantizeBlock(state, {line, std::min(line + S::kBlock.rows, range.line_end), pos,
                                std::min(pos + S::kBlock.cols, range.pos_end)});
        }
      }
    }
  }

 private:
  static constexpr bool kRowwise = kDirection == Direction::kRowwise;

  float Item(std::size_t line, std::size_t pos) const {
    return LoadItem<T>(args_.in.Row(kRowwise ? line : pos), kRowwise ? pos : line);
  }
  void Store(std::size_t line, std::size_t pos, std::uint32_t code) const {
    if constexpr (!kRowwise && !S::kLayout.columnwise_transposed) std::swap(line, pos);
    StoreCode<typename S::Element>(out_.codes + line * out_.code_stride, pos, code);
  }

  void QuantizeBlock(const typename S::TensorState& state, const LineRange& block) const {
    float amax = 0.0f;
    for (std::size_t line = block.line_begin; line < block.line_end; ++line) {
      for (std::size_t pos = block.pos_begin; pos < block.pos_end; ++pos) {
        const float magnitude = Magnitude(Item(line, pos));
        amax = magnitude > amax ? magnitude : amax;
      }
    }
    const BlockScale scale = ChooseScale(state, block, amax);
    const std::size_t offset = out_.strides.BlockOffset(ScaleBlockIndex<S>(block.pos_begin));
    for (std::size_t line = block.line_begin; line < block.line_end;
         line += S::kLayout.lines_per_scale) {
      StoreScaleInv<S>(out_.scale_inv, out_.strides.LineOffset(ScaleLine<S>(line)) + offset,
                       scale.scale_inv);
    }
    Encode(block, scale.scale);
  }

  BlockScale ChooseScale(const typename S::TensorState& state, const LineRange& block,
                         float amax) const {
    if constexpr (FourOverSixScheme<S>) {
      if (S::UsesFourOverSix(state)) {
        const auto [first, second] = S::Candidates(amax, state);
        return ErrorOf(state, block, first) < ErrorOf(state, block, second) ? first : second;
      }
    }
    return S::ScaleBlock(amax, state);
  }

  /// Adds the errors of a line in order, then lines pairwise: each line of the first half to one of
  /// the second, until one is left.
  float ErrorOf(const typename S::TensorState& state, const LineRange& block,
                const BlockScale& scale) const {
    using F = typename S::Element;
    float errors[S::kBlock.rows] = {};
    for (std::size_t line = block.line_begin; line < block.line_end; ++line) {
      float& error = errors[line - block.line_begin];
      for (std::size_t pos = block.pos_begin; pos < block.pos_end; ++pos) {
        const float x = Item(line, pos);
        error += S::Error(narrowfloat::Encode<F>(x * scale.scale), scale.scale_inv, x, state);
      }
    }
    for (std::size_t half = S::kBlock.rows / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) errors[i] += errors[i + half];
    }
    return errors[0];
  }

  void Encode(const LineRange& block, float scale) const {
    if constexpr (S::kOptions.Has(Option::kStochasticRounding)) {
      if (args_.rounding == Rounding::kStochastic) return EncodeStochastically(block, scale);
    }
    for (std::size_t line = block.line_begin; line < block.line_end; ++line) {
      for (std::size_t pos = block.pos_begin; pos < block.pos_end; ++pos) {
        Store(line, pos, narrowfloat::Encode<typename S::Element>(Item(line, pos) * scale));
      }
    }
  }

  void EncodeStochastically(const LineRange& block, float scale) const {
    static_assert(S::kBlock.cols == kRandomRun);
    const std::size_t runs =
        CeilDiv(kRowwise ? args_.shape.cols : args_.shape.rows, kRandomRun);  // per line
    for (std::size_t line = block.line_begin; line < block.line_end; ++line) {
      const std::uint64_t run = line * runs + block.pos_begin / kRandomRun;
      const auto random = RandomBytes(args_.random, kRowwise ? run : kColumnwiseRuns + run);
      for (std::size_t pos = block.pos_begin; pos < block.pos_end; ++pos) {
        Store(line, pos, EncodeStochastic(Item(line, pos) * scale, random[pos - block.pos_begin]));
      }
    }
  }

  const QuantizeArgs& args_;
  const DirectionBuffers<std::byte>& out_;
};

template <Scheme S, class T>
void RunDirections(const QuantizeArgs& args) noexcept {
  if (args.direction != Direction::kColumnwise)
    DirectionQuantizer<S, T, Direction::kRowwise>(args, args.rowwise).Run();
  if (args.direction != Direction::kRowwise)
    DirectionQuantizer<S, T, Direction::kColumnwise>(args, args.columnwise).Run();
}

/// Quantizes the Hadamard transform of each group of rows, for some columns at a time.
template <Scheme S, class T>
void RunTransformed(const QuantizeArgs& args) noexcept {
  constexpr std::size_t kCols = 64, kStride = kCols * kItemSize<T>;
  static_assert(S::kBlock.cols == kHadamardSize && kCols % S::kBlock.rows == 0);
  std::byte items[kHadamardSize * kStride];
  QuantizeArgs group = args;
  const Tile& tile = args.tile;
  for (std::size_t row = tile.row_begin; row < tile.row_end; row += kHadamardSize) {
    for (std::size_t col = tile.col_begin; col < tile.col_end; col += kCols) {
      group.tile = {row, row + kHadamardSize, col, std::min(col + kCols, tile.col_end)};
      ScalarKernels().Hadamard({args.dtype, args.in, group.tile}, *args.sign_mask,
                               {items, std::ptrdiff_t{kStride}});
      // Rows and columns are indexed from the tensor's corner.
      group.in = {items - row * kStride - col * kItemSize<T>, std::ptrdiff_t{kStride}};
      RunDirections<S, T>(group);
    }
  }
}

template <Scheme S, class T>
void Run(const QuantizeArgs& args) noexcept {
  if constexpr (S::kOptions.Has(Option::kHadamard)) {
    if (args.sign_mask) return RunTransformed<S, T>(args);
  }
  RunDirections<S, T>(args);
}

}  // namespace

void KernelTable::Quantize(const QuantizeArgs& args) const noexcept {
  static constexpr auto kRun = ArrayOf(AllSchemes{}, []<class S>() {
    return ArrayOf(FloatTypes{}, []<class T>() { return &Run<S, T>; });
  });
  if (args.amax_out != nullptr)
    *args.amax_out = KernelTable::Amax({args.dtype, args.in, args.tile});
  kRun[args.scheme][static_cast<std::size_t>(args.dtype)](args);
}

}  // namespace narrowfloat
