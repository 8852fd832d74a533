// SPDX-License-Identifier: Apache-2.0
// Whole-tensor schemes: one scale, known beforehand. Columnwise codes lie transposed.
#include "narrowfloat/kernels/cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/quantize_whole.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

QuantizeSlots Table() {
  return {};
}

#else

using D8 = hn::ScalableTag<std::uint8_t>;
using DF = hn::Repartition<float, D8>;
constexpr std::size_t kMaxLanes = HWY_MAX_BYTES;

/// Encodes `count` items of a row.
template <FloatFormat F, class T>
HWY_INLINE void EncodeRow(const std::byte* in, std::size_t count, const UniformScale<DF>& scale,
                          std::byte* out) {
  const D8 d8;
  const std::size_t lanes = hn::Lanes(d8);
  auto* codes = reinterpret_cast<std::uint8_t*>(out);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(EncodeRun<F, T>(d8, in + i * kItemSize<T>, scale), d8, codes + i);
  }
  if (i == count) return;
  Padded<T, kMaxLanes> tail;
  tail.Fill(in + i * kItemSize<T>, count - i);
  alignas(64) std::uint8_t staged[kMaxLanes];
  hn::Store(EncodeRun<F, T>(d8, tail.items, scale), d8, staged);
  std::memcpy(codes + i, staged, count - i);
}

template <FloatFormat F, class T, bool kKeepRows>
void EncodeTransposed(const QuantizeArgs& args, const UniformScale<DF>& scale) {
  const Tile& tile = args.tile;
  alignas(64) std::byte patch[kPatch * kPatch] = {};  // short patches leave zeros
  for (std::size_t r = tile.row_begin; r < tile.row_end; r += kPatch) {
    const std::size_t rows = std::min(kPatch, tile.row_end - r);
    for (std::size_t c = tile.col_begin; c < tile.col_end; c += kPatch) {
      const std::size_t cols = std::min(kPatch, tile.col_end - c);
      for (std::size_t i = 0; i < rows; ++i) {
        EncodeRow<F, T>(args.in.Row(r + i) + c * kItemSize<T>, cols, scale, patch + i * kPatch);
        if constexpr (kKeepRows) {
          std::memcpy(args.rowwise.codes + (r + i) * args.rowwise.code_stride + c,
                      patch + i * kPatch, cols);
        }
      }
      TransposePatch(reinterpret_cast<const std::uint8_t*>(patch), kPatch, rows, cols,
                     args.columnwise.codes + c * args.columnwise.code_stride + r,
                     args.columnwise.code_stride);
    }
  }
}

template <class S, class T, Direction kDirection>
struct QuantizeWhole {
  static void Run(const QuantizeArgs& args) noexcept {
    using F = typename S::Element;
    const float scale = S::ScaleBlock(args.amax, S::Prepare(args.amax, args.options)).scale;
    // Only a scale that the caller gave can be zero, negative, infinite or NaN; the oracle knows
    // what those do.
    if (!(scale > 0.0f && scale <= kLargestFloat)) {
      ScalarKernels().quantize[kSchemeIndex<S>][static_cast<std::size_t>(kDirection)]
                              [static_cast<std::size_t>(kDTypeOf<T>)](args);
      return;
    }
    const UniformScale<DF> uniform{hn::Set(DF(), scale)};
    const Tile& tile = args.tile;
    if constexpr (kDirection == Direction::kRowwise) {
      for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
        EncodeRow<F, T>(args.in.Row(r) + tile.col_begin * kItemSize<T>,
                        tile.col_end - tile.col_begin, uniform,
                        args.rowwise.codes + r * args.rowwise.code_stride + tile.col_begin);
      }
    } else {
      EncodeTransposed<F, T, kDirection == Direction::kBoth>(args, uniform);
    }
  }
};

template <class S, Direction kDirection, class... T>
constexpr ByType<QuantizeFn> Types(TypeList<T...>) {
  if constexpr (WholeTensorScheme<S>) {
    return {&QuantizeWhole<S, T, kDirection>::Run...};
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
QuantizeSlots QuantizeWholeTable(std::size_t target) {
  return HWY_DISPATCH_TABLE(Table)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
