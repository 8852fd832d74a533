// SPDX-License-Identifier: Apache-2.0
// Square blocks, whose codes and scales are the same in both directions.
#include "narrowfloat/kernels/cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/quantize_tiles.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

QuantizeSlots Table() {
  return {};
}

#else

/// A square of items, one tile of the scheme; its scale goes to every line that it covers.
struct Square {
  std::size_t row, rows, col, cols;
};

template <class S, Direction kDirection>
HWY_INLINE void StoreTileScale(const DirectionBuffers<std::byte>& out, const Square& square,
                               std::uint32_t scale_inv) {
  constexpr bool kRowwise = kDirection == Direction::kRowwise;
  const std::size_t line = kRowwise ? square.row : square.col;
  const std::size_t lines = kRowwise ? square.rows : square.cols;
  const std::size_t block =
      out.strides.BlockOffset(ScaleBlockIndex<S>(kRowwise ? square.col : square.row));
  for (std::size_t i = 0; i < lines; i += S::kLayout.lines_per_scale) {
    StoreScaleInv<S>(out.scale_inv, out.strides.LineOffset(ScaleLine<S>(line + i)) + block,
                     scale_inv);
  }
}

template <class S, class T, Direction kDirection>
HWY_INLINE void StoreBatchScales(const DirectionBuffers<std::byte>& out, const Square& covered,
                                 const Batch<S, T>& batch) {
  for (std::size_t i = 0; i < covered.cols; i += S::kBlock.cols) {
    const Square square{covered.row, covered.rows, covered.col + i,
                        std::min(S::kBlock.cols, covered.cols - i)};
    StoreTileScale<S, kDirection>(out, square, batch.scale_inv[i / S::kBlock.cols]);
  }
}

template <class S, class T, Direction kDirection>
struct QuantizeTiles {
  static_assert(!S::kLayout.columnwise_transposed);

  static void Run(const QuantizeArgs& args) noexcept {
    const auto& first = kDirection == Direction::kColumnwise ? args.columnwise : args.rowwise;
    ForEachBatch<S, T>(
        args, first, kDirection == Direction::kBoth ? &args.columnwise : nullptr,
        [&](std::size_t row, std::size_t rows, std::size_t col, std::size_t cols,
            const Batch<S, T>& batch) NF_INLINE_ATTR {
          const Square covered{row, rows, col, cols};
          if constexpr (kDirection != Direction::kColumnwise) {
            StoreBatchScales<S, T, Direction::kRowwise>(args.rowwise, covered, batch);
          }
          if constexpr (kDirection != Direction::kRowwise) {
            StoreBatchScales<S, T, Direction::kColumnwise>(args.columnwise, covered, batch);
          }
        });
  }
};

template <class S, Direction kDirection, class... T>
constexpr ByType<QuantizeFn> Types(TypeList<T...>) {
  if constexpr (TileScheme<S> && !S::kLayout.columnwise_transposed) {
    return {&QuantizeTiles<S, T, kDirection>::Run...};
  } else {
    return {};
  }
}

template <class... S>
constexpr QuantizeSlots MakeTable(TypeList<S...>) {
  return {{{{Types<S, Direction::kRowwise>(FloatTypes{}),
             Types<S, Direction::kColumnwise>(FloatTypes{}),
             Types<S, Direction::kBoth>(FloatTypes{})}}...}};
}

QuantizeSlots Table() {
  return MakeTable(AllSchemes{});
}

#endif

}  // namespace
}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowfloat {
HWY_EXPORT(Table);
namespace cpu {
QuantizeSlots QuantizeTilesTable(std::size_t target) {
  return HWY_DISPATCH_TABLE(Table)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
