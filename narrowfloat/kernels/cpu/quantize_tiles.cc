// SPDX-License-Identifier: Apache-2.0
// Quantizes square blocks whose codes keep the input's orientation.
#include "narrowfloat/kernels/cpu/bodies.h"
#include "narrowfloat/kernels/cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/quantize_tiles.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

QuantizeSlots Table() {
  return {};
}

#else

template <class S, class T, Direction kDirection>
struct QuantizeTiles {
  static void Run(const QuantizeArgs& args) noexcept {
    const auto& first = kDirection == Direction::kColumnwise ? args.columnwise : args.rowwise;
    ForEachBatch<S, T>(
        args, first, kDirection == Direction::kBoth ? &args.columnwise : nullptr,
        [&](std::size_t row, std::size_t rows, std::size_t col, std::size_t cols,
            const Batch<S, T>& batch) NF_INLINE_ATTR {
          const Rect covered{row, rows, col, cols};
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
  if constexpr (cpu::BodyOf<S>(kDirection) == cpu::Body::kTiles) {
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
