// SPDX-License-Identifier: Apache-2.0
// Decoding codes, those that keep the input's orientation and, of whole-tensor schemes, transposed
// ones.
#include "narrowfloat/kernels/cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/dequantize.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/cpu/transpose-inl.h"
#include "narrowfloat/kernels/scalar/items.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

DequantizeSlots Table() {
  return {};
}

#else

using DF = hn::ScalableTag<float>;
using D32 = hn::RebindToUnsigned<DF>;
constexpr std::size_t kMaxRun =
    2 * HWY_MAX_BYTES / sizeof(float);  // items of one step: two vectors of fp32

constexpr float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(127 + exponent) << 23);
}

#if HWY_TARGET <= HWY_AVX2

/// Two vectors' worth of values. A code's bits, shifted to where float16 has its exponent and
/// mantissa, are the value times 2^(bias-15), which the processor widens exactly, subnormals
/// included. 11 ops.
template <FloatFormat F>
HWY_INLINE void DecodeCodes(const std::uint8_t* codes, hn::Vec<DF>& low, hn::Vec<DF>& high) {
  const DF df;
  const hn::Repartition<std::uint16_t, DF> d16;
  const hn::RebindToSigned<decltype(d16)> di;
  const hn::Half<decltype(d16)> dh;
  const hn::Rebind<hwy::float16_t, decltype(dh)> df16;
  const hn::Rebind<std::uint8_t, decltype(d16)> d8;
  constexpr int kShorter = Float16::kExponentBits - F::kExponentBits;
  auto half = hn::ShiftLeft<8>(hn::PromoteTo(d16, hn::LoadU(d8, codes)));
  if constexpr (kShorter > 0) {
    // Shifting the sign in keeps it at the top; its copies below are cleared.
    constexpr auto kClear = static_cast<std::uint16_t>(~(0x8000u - (0x8000u >> kShorter)));
    half = hn::And(hn::BitCast(d16, hn::ShiftRight<kShorter>(hn::BitCast(di, half))),
                   hn::Set(d16, kClear));
    constexpr auto kNan = static_cast<std::uint16_t>(F::kNanCode << (8 - kShorter));
    const auto magnitude = hn::And(half, hn::Set(d16, std::uint16_t{0x7FFF}));
    half = hn::IfThenElse(hn::Eq(magnitude, hn::Set(d16, kNan)),
                          hn::Set(d16, static_cast<std::uint16_t>(Float16::kNanCode)), half);
  }
  low = hn::PromoteTo(df, hn::BitCast(df16, hn::LowerHalf(dh, half)));
  high = hn::PromoteTo(df, hn::BitCast(df16, hn::UpperHalf(dh, half)));
  if constexpr (kShorter > 0) {
    const auto rebias = hn::Set(df, PowerOfTwo(Float16::kBias - F::kBias));
    low = hn::Mul(low, rebias);
    high = hn::Mul(high, rebias);
  }
}

#else

/// Values of codes. The bits of a code, shifted to where binary32 has its exponent and mantissa,
/// are the value times 2^(bias-127), subnormals included; the product is exact. 9 ops.
template <FloatFormat F>
HWY_INLINE hn::Vec<DF> DecodeVector(const std::uint8_t* codes) {
  const DF df;
  const D32 d32;
  const hn::Rebind<std::uint8_t, DF> d8;
  const auto items = hn::PromoteTo(d32, hn::LoadU(d8, codes));
  const auto magnitude = hn::And(items, hn::Set(d32, kSignCode<F> - 1u));
  const auto sign = hn::ShiftLeft<32 - kBits<F> >(hn::Xor(items, magnitude));
  const auto moved = hn::BitCast(df, hn::ShiftLeft<23 - F::kMantissaBits>(magnitude));
  auto value = hn::BitCast(d32, hn::Mul(moved, hn::Set(df, PowerOfTwo(127 - F::kBias))));
  if constexpr (F::kMaxCode < kSignCode<F> - 1u) {
    const auto infinite = hn::Eq(magnitude, hn::Set(d32, F::kMaxCode + 1u));
    const auto special = F::kHasInfinity ? hn::IfThenElse(infinite, hn::Set(d32, kFloatInfinity),
                                                          hn::Set(d32, kFloatNan))
                                         : hn::Set(d32, kFloatNan);
    value = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, F::kMaxCode)), special, value);
  }
  return hn::BitCast(df, hn::Or(value, sign));
}

template <FloatFormat F>
HWY_INLINE void DecodeCodes(const std::uint8_t* codes, hn::Vec<DF>& low, hn::Vec<DF>& high) {
  low = DecodeVector<F>(codes);
  high = DecodeVector<F>(codes + hn::Lanes(DF()));
}

#endif

/// value * scale_inv, any NaN as the one quiet NaN.
HWY_INLINE hn::Vec<DF> Scaled(hn::Vec<DF> value, hn::Vec<DF> scale_inv) {
  const DF df;
  const auto product = hn::Mul(value, scale_inv);
  return hn::IfThenElse(hn::Eq(product, product), product,
                        hn::BitCast(df, hn::Set(D32(), kFloatNan)));
}

/// Rounds canonical values to T.
template <class T>
HWY_INLINE hn::Vec<hn::Repartition<std::uint16_t, DF> > RoundTo(hn::Vec<DF> low, hn::Vec<DF> high) {
  const DF df;
  const D32 d32;
  const hn::Repartition<std::uint16_t, DF> d16;
  if constexpr (std::is_same_v<T, BFloat16>) {
    const auto rounded = [&](hn::Vec<DF> value) HWY_ATTR {
      const auto bits = hn::BitCast(d32, value);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
      return hn::BitCast(d16, hn::Add(hn::Add(bits, hn::Set(d32, 0x7FFFu)), odd));
    };
    return hn::ConcatOdd(d16, rounded(high), rounded(low));
  } else {
    // Cutting off at twice the largest power of two gives infinity's code.
    const auto rounded = [&](hn::Vec<DF> value) HWY_ATTR {
      const auto bits = hn::BitCast(d32, value);
      const auto magnitude = hn::And(bits, hn::Set(d32, ~kFloatSign));
      const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
      const auto code =
          EncodeMagnitudes<T, 0>(df, hn::BitCast(df, magnitude), PowerOfTwo(T::kBias + 1));
      return hn::BitCast(d16, hn::IfThenElse(hn::Eq(bits, hn::Set(d32, kFloatNan)),
                                             hn::Set(d32, T::kNanCode), hn::Or(code, sign)));
    };
    return hn::ConcatEven(d16, rounded(high), rounded(low));
  }
}

/// Two vectors' worth of items.
template <FloatFormat F, class T, class Scale>
HWY_INLINE void DecodeRun(const std::uint8_t* codes, const Scale& scale, std::byte* out) {
  const DF df;
  hn::Vec<DF> low, high;
  DecodeCodes<F>(codes, low, high);
  low = Scaled(low, scale(0));
  high = Scaled(high, scale(1));
  if constexpr (kItemSize<T> == 4) {
    hn::StoreU(low, df, reinterpret_cast<float*>(out));
    hn::StoreU(high, df, reinterpret_cast<float*>(out) + hn::Lanes(df));
  } else {
    const hn::Repartition<std::uint16_t, DF> d16;
    hn::StoreU(RoundTo<T>(low, high), d16, reinterpret_cast<std::uint16_t*>(out));
  }
}

/// `count` items with one scale each (LaneScales) or one for all (UniformScale); scale_at(i) is
/// that of item i on.
template <FloatFormat F, class T, class ScaleAt>
HWY_INLINE void DecodeRow(const std::byte* in, std::size_t count, const ScaleAt& scale_at,
                          std::byte* out) {
  const std::size_t run = 2 * hn::Lanes(DF());
  const auto* codes = reinterpret_cast<const std::uint8_t*>(in);
  std::size_t i = 0;
  for (; i + run <= count; i += run) {
    DecodeRun<F, T>(codes + i, scale_at(i), out + i * kItemSize<T>);
  }
  if (i == count) return;
  alignas(64) std::uint8_t staged[kMaxRun] = {};
  alignas(64) std::byte items[kMaxRun * kItemSize<T>];
  std::memcpy(staged, codes + i, count - i);
  DecodeRun<F, T>(staged, scale_at(i), items);
  std::memcpy(out + i * kItemSize<T>, items, (count - i) * kItemSize<T>);
}

template <class S, class T>
struct DequantizeRows {
  static void Run(const DequantizeArgs& args) noexcept {
    const typename S::TensorState state = S::Prepare(args.amax, args.options);
    const DirectionBuffers<const std::byte>& in = args.in;
    const Tile& tile = args.tile;
    const std::size_t step = WholeTensorScheme<S> ? tile.col_end - tile.col_begin : S::kBlock.cols;
    for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
      const std::byte* codes = in.codes + r * in.code_stride;
      std::byte* out = args.out.Row(r);
      const std::size_t line = in.strides.LineOffset(ScaleLine<S>(r));
      for (std::size_t c = tile.col_begin; c < tile.col_end; c += step) {
        const std::size_t item = line + in.strides.BlockOffset(ScaleBlockIndex<S>(c));
        const float scale = S::DecodeScale(LoadScaleInv<S>(in.scale_inv, item), state);
        const UniformScale<DF> uniform{hn::Set(DF(), scale)};
        DecodeRow<typename S::Element, T>(
            codes + c, std::min(step, tile.col_end - c),
            [&](std::size_t) HWY_ATTR { return uniform; }, out + c * kItemSize<T>);
      }
    }
  }
};

template <class S, class T>
struct DequantizeColumns {
  static void Run(const DequantizeArgs& args) noexcept {
    constexpr std::size_t kRows = S::kBlock.cols;  // of the transposed block
    constexpr std::size_t kChunk = 1024;           // columns whose scales are decoded together
    const typename S::TensorState state = S::Prepare(args.amax, args.options);
    const DirectionBuffers<const std::byte>& in = args.in;
    const Tile& tile = args.tile;
    float scales[kChunk + kMaxRun] = {};  // a last run reads past the chunk
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kRows) {
      const std::size_t row_end = std::min(row + kRows, tile.row_end);
      const std::size_t block = in.strides.BlockOffset(ScaleBlockIndex<S>(row));
      for (std::size_t col = tile.col_begin; col < tile.col_end; col += kChunk) {
        const std::size_t cols = std::min(kChunk, tile.col_end - col);
        for (std::size_t i = 0; i < cols; ++i) {
          const std::size_t item = in.strides.LineOffset(ScaleLine<S>(col + i)) + block;
          scales[i] = S::DecodeScale(LoadScaleInv<S>(in.scale_inv, item), state);
        }
        for (std::size_t r = row; r < row_end; ++r) {
          DecodeRow<typename S::Element, T>(
              in.codes + r * in.code_stride + col, cols,
              [&](std::size_t i) HWY_ATTR { return LaneScales<DF>{scales + i}; },
              args.out.Row(r) + col * kItemSize<T>);
        }
      }
    }
  }
};

/// Copies a patch of transposed codes, zeros behind it, so that whole squares can be read.
HWY_INLINE void StagePatch(const std::byte* codes, std::size_t stride, std::size_t rows,
                           std::size_t cols, std::uint8_t* staged) {
  if (rows < kPatch || cols < kPatch) std::memset(staged, 0, kPatch * kPatch);
  for (std::size_t c = 0; c < cols; ++c) std::memcpy(staged + c * kPatch, codes + c * stride, rows);
}

template <class S, class T>
struct DequantizeTransposed {
  static void Run(const DequantizeArgs& args) noexcept {
    const typename S::TensorState state = S::Prepare(args.amax, args.options);
    const DirectionBuffers<const std::byte>& in = args.in;
    const Tile& tile = args.tile;
    const float scale = S::DecodeScale(LoadScaleInv<S>(in.scale_inv, 0), state);
    const UniformScale<DF> uniform{hn::Set(DF(), scale)};
    alignas(64) std::uint8_t staged[kPatch * kPatch];
    alignas(64) std::byte patch[kPatch * kPatch];
    for (std::size_t r = tile.row_begin; r < tile.row_end; r += kPatch) {
      const std::size_t rows = std::min(kPatch, tile.row_end - r);
      for (std::size_t c = tile.col_begin; c < tile.col_end; c += kPatch) {
        const std::size_t cols = std::min(kPatch, tile.col_end - c);
        StagePatch(in.codes + c * in.code_stride + r, in.code_stride, rows, cols, staged);
        TransposePatch(staged, kPatch, cols, rows, patch, kPatch);
        for (std::size_t i = 0; i < rows; ++i) {
          DecodeRow<typename S::Element, T>(
              patch + i * kPatch, cols, [&](std::size_t) HWY_ATTR { return uniform; },
              args.out.Row(r + i) + c * kItemSize<T>);
        }
      }
    }
  }
};

template <class S, class... T>
constexpr ByType<DequantizeFn> Rowwise(TypeList<T...>) {
  return {&DequantizeRows<S, T>::Run...};
}

template <class S, class... T>
constexpr ByType<DequantizeFn> Columnwise(TypeList<T...>) {
  if constexpr (WholeTensorScheme<S>) {
    return {&DequantizeTransposed<S, T>::Run...};
  } else if constexpr (S::kLayout.columnwise_transposed) {
    return {};
  } else {
    return {&DequantizeColumns<S, T>::Run...};
  }
}

template <class... S>
constexpr DequantizeSlots MakeTable(TypeList<S...>) {
  return {{{{Rowwise<S>(FloatTypes{}), Columnwise<S>(FloatTypes{}), {}}}...}};
}

DequantizeSlots Table() {
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
DequantizeSlots DequantizeTable(std::size_t target) {
  return HWY_DISPATCH_TABLE(Table)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
