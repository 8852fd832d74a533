// SPDX-License-Identifier: Apache-2.0
// Micro-kernels of products over panels of fp32 values. Each lane computes one item of the result
// and adds its products one after another, so the bytes do not depend on the number of lanes. A
// product of two codes is exact in fp32: a fused multiply-add and a multiplication followed by an
// addition give the same bits.
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include <cmath>
#include <utility>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

/// Returns fma(x, y, z), rounded once.
template <class D>
HWY_INLINE hn::Vec<D> FusedMulAdd(D d, hn::Vec<D> x, hn::Vec<D> y, hn::Vec<D> z) {
#if HWY_TARGET == HWY_SSE4
  // The instruction set has no fused operation. An item needs it once per slab of 128 positions.
  alignas(16) float lanes[3][hn::MaxLanes(D())];
  hn::Store(x, d, lanes[0]);
  hn::Store(y, d, lanes[1]);
  hn::Store(z, d, lanes[2]);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
    lanes[0][i] = std::fma(lanes[0][i], lanes[1][i], lanes[2][i]);
  }
  return hn::Load(d, lanes[0]);
#else
  (void)d;
  return hn::MulAdd(x, y, z);
#endif
}

/// Adds the dot products of a vector of columns to their sums; `a` is the row's scale, `b` the
/// address of the columns' scales. 4 ops per half vector for kBinary64.
template <SlabSum kSum>
HWY_INLINE void AddDots(hn::Vec<DF> dots, double a, const double* b, void* sums) {
  const DF df;
  if constexpr (kSum == SlabSum::kBinary64) {
    const DD dd;
    for (std::size_t k = 0; k < 2; ++k) {
      double* sum = static_cast<double*>(sums) + k * hn::Lanes(dd);
      const auto scale = hn::Mul(hn::Set(dd, a), hn::LoadU(dd, b + k * hn::Lanes(dd)));
      hn::StoreU(hn::Add(hn::LoadU(dd, sum), hn::Mul(WidenHalf(dots, k), scale)), dd, sum);
    }
  } else {
    auto* sum = static_cast<float*>(sums);
    const auto before = hn::LoadU(df, sum);
    const auto row = hn::Set(df, static_cast<float>(a));
    const auto cols = LoadAsFloats(b);
    auto after = before;
    if constexpr (kSum == SlabSum::kFusedLast) {
      after = FusedMulAdd(df, hn::Mul(dots, row), cols, before);
    } else if constexpr (kSum == SlabSum::kFusedFirst) {
      after = FusedMulAdd(df, hn::Mul(dots, cols), row, before);
    } else {
      after = FusedMulAdd(df, dots, hn::Mul(row, cols), before);
    }
    hn::StoreU(after, df, sum);
  }
}

/// The vectors of a micro-tile of kRows rows, row by row: vector i has row i / kFloatVectors.
template <std::size_t kRows>
using TileVectors = std::make_index_sequence<kRows * kFloatVectors>;
constexpr std::size_t RowOf(std::size_t vector) {
  return vector / kFloatVectors;
}
constexpr std::size_t ColOf(std::size_t vector) {
  return vector % kFloatVectors * hn::MaxLanes(DF());
}

/// Adds the products a[k][row] * b[k][col] to `dots`, the vectors of a micro-tile, for each k in
/// order. `dots` is a pack, because SVE's vectors cannot be in an array.
template <std::size_t... kVectors, class... Dots>
HWY_INLINE void AddProducts(std::index_sequence<kVectors...> /*tile*/, const float* HWY_RESTRICT& a,
                            const float* HWY_RESTRICT& b, std::size_t count, Dots&... dots) {
  const DF df;
  for (std::size_t k = 0; k < count; ++k, a += kFloatRows, b += kFloatCols) {
    ((dots = hn::MulAdd(hn::Set(df, a[RowOf(kVectors)]), hn::Load(df, b + ColOf(kVectors)), dots)),
     ...);
  }
}

template <SlabSum kSum>
struct AddSlabs {
  template <std::size_t... kVectors>
  static HWY_NOINLINE void Run(std::index_sequence<kVectors...> tile, const MicroTileArgs& args) {
    const DF df;
    const auto* HWY_RESTRICT a = reinterpret_cast<const float*>(args.a);
    const auto* HWY_RESTRICT b = reinterpret_cast<const float*>(args.b);
    const double *a_scales = args.a_scales, *b_scales = args.b_scales;
    constexpr std::size_t kSumBytes = kSum == SlabSum::kBinary64 ? 8 : 4;
    const auto sums_at = [&](std::size_t vector) NF_INLINE_ATTR {
      return static_cast<std::byte*>(args.sums) +
             (RowOf(vector) * kFloatCols + ColOf(vector)) * kSumBytes;
    };
    for (std::size_t left = args.length; left > 0;) {
      const std::size_t count = left < args.slab ? left : args.slab;
      left -= count;
      [&](auto... dots) NF_INLINE_ATTR {
        AddProducts(tile, a, b, count, dots...);
        (AddDots<kSum>(dots, a_scales[RowOf(kVectors)], b_scales + ColOf(kVectors),
                       sums_at(kVectors)),
         ...);
      }((static_cast<void>(kVectors), hn::Zero(df))...);
      a_scales += kFloatRows;
      b_scales += kFloatCols;
    }
  }
};

struct AddUnscaled {
  template <std::size_t... kVectors>
  static HWY_NOINLINE void Run(std::index_sequence<kVectors...> tile, const MicroTileArgs& args) {
    const DF df;
    const auto* HWY_RESTRICT a = reinterpret_cast<const float*>(args.a);
    const auto* HWY_RESTRICT b = reinterpret_cast<const float*>(args.b);
    auto* sums = static_cast<float*>(args.sums);
    const auto sums_at = [=](std::size_t vector) NF_INLINE_ATTR {
      return sums + RowOf(vector) * kFloatCols + ColOf(vector);
    };
    [&](auto... dots) NF_INLINE_ATTR {
      AddProducts(tile, a, b, args.length, dots...);
      (hn::StoreU(dots, df, sums_at(kVectors)), ...);
    }(hn::LoadU(df, sums_at(kVectors))...);
  }
};

/// Calls the smallest variant of Kernel that has at least `args.rows` rows.
template <class Kernel>
void RunRows(const MicroTileArgs& args) noexcept {
  constexpr std::size_t kHalf = (kFloatRows + 1) / 2, kQuarter = (kFloatRows + 3) / 4;
  if (args.rows == 1) return Kernel::Run(TileVectors<1>(), args);
  if (args.rows <= kQuarter) return Kernel::Run(TileVectors<kQuarter>(), args);
  if (args.rows <= kHalf) return Kernel::Run(TileVectors<kHalf>(), args);
  Kernel::Run(TileVectors<kFloatRows>(), args);
}

}  // namespace

GemmBody GemmFloatsBody() {
  return {.rows = kFloatRows,
          .cols = kFloatCols,
          .unit = 1,
          .a_unit_bytes = kFloatRows * sizeof(float),
          .b_unit_bytes = kFloatCols * sizeof(float),
          .pack = GemmFloatPackers(),
          .add_slabs = {&RunRows<AddSlabs<SlabSum::kBinary64> >,
                        &RunRows<AddSlabs<SlabSum::kFusedLast> >,
                        &RunRows<AddSlabs<SlabSum::kFusedFirst> >,
                        &RunRows<AddSlabs<SlabSum::kFusedProduct> >},
          .add_products = &RunRows<AddUnscaled>};
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
