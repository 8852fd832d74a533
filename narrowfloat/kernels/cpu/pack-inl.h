// SPDX-License-Identifier: Apache-2.0
// Computes scales of blocks with 4-bit codes, and packs two codes per byte. Compiled once per
// instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_PACK_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_PACK_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_PACK_INL_H_
#endif

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/blocks-inl.h"
#include "narrowfloat/kernels/cpu/coders-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Schemes with two codes per byte and transposed columnwise codes: NVFP4 and MXFP4.
template <class S>
concept PackedScheme = Scheme<S> && kCodesPerByte<S>
== 2 && S::kLayout.columnwise_transposed && !WholeTensorScheme<S>;
template <Scheme S>
inline constexpr bool kRoundsStochastically = S::kOptions.Has(Option::kStochasticRounding);

/// Providers of TensorState's members for the blocks from j on. UniformState: one state for all
/// blocks. LineStates: one per line.
template <Scheme S>
class UniformState {
 public:
  explicit UniformState(const typename S::TensorState& state) : state_(state) {}
  HWY_INLINE auto EncodeOverMax(std::size_t /*j*/) const {
    return hn::Set(DF(), state_.encode_over_max);
  }
  HWY_INLINE auto ReciprocalEncode(std::size_t /*j*/) const {
    return hn::Set(DF(), state_.reciprocal_encode);
  }
  HWY_INLINE auto Encode(std::size_t /*j*/) const { return hn::Set(DF(), state_.encode); }
  HWY_INLINE auto Amax(std::size_t /*j*/) const { return hn::Set(DF(), state_.amax); }

 private:
  const typename S::TensorState& state_;
};
template <Scheme S, std::size_t kLines>
class LineStates {
 public:
  template <class StateOf>
  HWY_INLINE void Load(std::size_t lines, const StateOf& state_of) {
    for (std::size_t i = 0; i < lines; ++i) {
      const typename S::TensorState state = state_of(i);
      encode_over_max_[i] = state.encode_over_max;
      reciprocal_encode_[i] = state.reciprocal_encode;
      encode_[i] = state.encode;
      amax_[i] = state.amax;
    }
  }
  HWY_INLINE auto EncodeOverMax(std::size_t j) const {
    return hn::Load(DF(), encode_over_max_ + j);
  }
  HWY_INLINE auto ReciprocalEncode(std::size_t j) const {
    return hn::Load(DF(), reciprocal_encode_ + j);
  }
  HWY_INLINE auto Encode(std::size_t j) const { return hn::Load(DF(), encode_ + j); }
  HWY_INLINE auto Amax(std::size_t j) const { return hn::Load(DF(), amax_ + j); }

 private:
  alignas(64) float encode_over_max_[kLines] = {};
  alignas(64) float reciprocal_encode_[kLines] = {};
  alignas(64) float encode_[kLines] = {};
  alignas(64) float amax_[kLines] = {};
};

/// Rounds non-negative numbers to F's steps, without F's upper limit: adds and subtracts 2^(23-M)
/// times the power of two at or below the number, so that the sum's last bit is one step. 4 ops
/// with a fused multiply-add, whose products are exact here, else 5.
template <FloatFormat F>
HWY_INLINE hn::Vec<DF> RoundTo(hn::Vec<DF> number) {
  const DF df;
  constexpr float kSmallestNormal = std::bit_cast<float>(EncodeRule<F>::kSmallestNormalField << 23);
  constexpr float kToSteps = static_cast<float>(1u << (23 - F::kMantissaBits));
  const auto infinity = hn::BitCast(df, hn::Set(hn::RebindToUnsigned<DF>(), kFloatInfinity));
  const auto exponent = hn::Max(hn::And(number, infinity), hn::Set(df, kSmallestNormal));
  const auto to_steps = hn::Set(df, kToSteps);
  if constexpr (HWY_NATIVE_FMA)
    return hn::NegMulAdd(exponent, to_steps, hn::MulAdd(exponent, to_steps, number));
  const auto base = hn::Mul(exponent, to_steps);
  return hn::Sub(hn::Add(base, number), base);
}

/// Scales of blocks: the stored code, its value, and the factor of items.
struct TwoLevelScale {
  hn::Vec<hn::RebindToUnsigned<DF> > code;
  hn::Vec<DF> value, scale;
};
/// Rounds the wanted scale_inv to F, saturating; scale = 1 / (value * reciprocal_encode), at most
/// the largest float. Requires: `wanted` is not negative.
template <FloatFormat F>
HWY_INLINE TwoLevelScale ScaleOf(hn::Vec<DF> wanted, hn::Vec<DF> reciprocal_encode) {
  const DF df;
  const hn::RebindToUnsigned<DF> d32;
  const auto number = hn::Min(wanted, hn::Set(df, kMaxValue<F>));  // saturates
  const auto code =
      hn::And(hn::ShiftRight<kCodeShift<F> >(EncodeMagnitudes<F, kCodeShift<F> >(df, number)),
              hn::Set(d32, kSignCode<F> - 1u));
  const auto value = RoundTo<F>(number);
  const auto scale = hn::Div(hn::Set(df, 1.0f), hn::Mul(value, reciprocal_encode));
  return {code, value, hn::Min(scale, hn::Set(df, kLargestFloat))};
}
/// Returns a mask of the blocks that need the slow path: not all zeros, and the wanted scale_inv is
/// below F's smallest normal number (rounding error above 1/16) or above its largest. For all other
/// blocks every product rounds to a finite E2M1 number.
template <FloatFormat F>
HWY_INLINE hn::Vec<DF> NeedsSlowPath(hn::Vec<DF> wanted, hn::Vec<DF> amax) {
  const DF df;
  constexpr float kSmallestNormal = std::bit_cast<float>(EncodeRule<F>::kSmallestNormalField << 23);
  const auto small =
      hn::And(hn::Lt(wanted, hn::Set(df, kSmallestNormal)), hn::Gt(amax, hn::Zero(df)));
  return hn::VecFromMask(df, hn::Or(small, hn::Gt(wanted, hn::Set(df, kMaxValue<F>))));
}

/// Computes S::ScaleBlock of `count` blocks, rounded up to whole vectors, with the same operations.
/// Returns true if no block needs the slow path. Requires: amaxes are not NaN; the states' numbers
/// are positive and finite.
template <Scheme S, class States>
HWY_INLINE bool ComputeTwoLevelScales(const float* amax, std::size_t count, const States& states,
                                      std::uint32_t* scale_inv, float* scales) {
  using F = typename S::Scale;
  const DF df;
  auto slow = hn::Zero(df);
  for (std::size_t j = 0; j < count; j += hn::Lanes(df)) {
    const auto of = hn::Load(df, amax + j);
    const auto wanted = hn::Mul(of, states.EncodeOverMax(j));
    const TwoLevelScale computed = ScaleOf<F>(wanted, states.ReciprocalEncode(j));
    hn::StoreU(computed.code, hn::RebindToUnsigned<DF>(), scale_inv + j);
    hn::StoreU(computed.scale, df, scales + j);
    slow = hn::Or(slow, NeedsSlowPath<F>(wanted, of));
  }
  return hn::AllFalse(df, hn::MaskFromVec(slow));
}

/// Stores S::ScaleBlock of `count` blocks, which keeps their products within S's numbers.
/// Requires: amaxes are not NaN. `count` is a constant where this is inlined, so that the compiler
/// vectorizes the loop.
template <Scheme S>
HWY_INLINE void ComputeOneLevelScales(const float* __restrict amax, std::size_t count,
                                      const typename S::TensorState& state,
                                      std::uint32_t* __restrict scale_inv,
                                      float* __restrict scales) {
  for (std::size_t j = 0; j < count; ++j) {
    const BlockScale computed = S::ScaleBlock(amax[j], state);
    scale_inv[j] = computed.scale_inv;
    scales[j] = computed.scale;
  }
}

/// De-interleaves 16-bit lanes: all even ones, then all odd ones. 2 ops.
template <class D16>
HWY_INLINE hn::Vec<D16> InOrder(D16 d16, hn::Vec<D16> alternating) {
  const hn::Repartition<std::uint8_t, D16> d8;
  const hn::Repartition<std::int64_t, D16> d64;
  alignas(16) static constexpr std::uint8_t kEvenFirst[16] = {0, 1, 4, 5, 8,  9,  12, 13,
                                                              2, 3, 6, 7, 10, 11, 14, 15};
  const auto in_blocks =
      hn::TableLookupBytes(hn::BitCast(d8, alternating), hn::LoadDup128(d8, kEvenFirst));
  constexpr std::size_t kUnits = hn::MaxLanes(d64);
  if constexpr (kUnits == 2) {
    return hn::BitCast(d16, in_blocks);
  } else {
    alignas(64) static constexpr auto kOrder = [] {
      std::array<std::int64_t, kUnits> order{};
      for (std::size_t i = 0; i < kUnits; ++i) {
        order[i] = static_cast<std::int64_t>(i % (kUnits / 2) * 2 + i / (kUnits / 2));
      }
      return order;
    }();
    return hn::BitCast(d16, hn::TableLookupLanes(hn::BitCast(d64, in_blocks),
                                                 hn::SetTableIndices(d64, kOrder.data())));
  }
}

/// Encodes Lanes(d16) items from the i-th on. Returns codes in the top bits of lanes, zeros below.
template <Scheme S, class T, class D16, class Coder>
HWY_INLINE hn::Vec<D16> TopCodes(D16 d16, const std::byte* in, std::size_t i, const float* scales,
                                 const Coder& coder) {
  const hn::Repartition<float, D16> df;
  if constexpr (kItemSize<T> == 2) {
    const auto scale = SpreadScales<S::kBlock.cols / 2>(df, scales, i / 2);
    return coder.template Codes16<T>(d16, LoadItems(d16, in + i * kItemSize<T>), scale, scale, i);
  } else {
    const hn::Repartition<std::uint32_t, D16> d32;
    const auto items = [&](std::size_t k)
                           NF_INLINE_ATTR { return LoadItems(d32, in + k * kItemSize<T>); };
    const auto codes = [&](std::size_t k) NF_INLINE_ATTR {
      return coder.Codes32(d32, items(k), SpreadScales<S::kBlock.cols>(df, scales, k), k);
    };
    const std::size_t next = i + hn::Lanes(d32);
    constexpr Inputs kInputs = Coder::kKind;
    return InOrder(d16, SignedPairs(d32, codes(i), codes(next), Signs<kInputs>(d32, items(i)),
                                    Signs<kInputs>(d32, items(next))));
  }
}

/// Packs 2 * Lanes(d8) 4-bit codes, the first of two in the low half of a byte. at(i) returns the
/// codes from the i-th on in the top bits of 16-bit lanes, zeros below.
template <class DB, class At>
HWY_INLINE hn::Vec<DB> PackCodes(DB d8, const At& at) {
  const hn::Repartition<std::uint16_t, DB> d16;
  const hn::Repartition<std::uint32_t, DB> d32;
  const std::size_t lanes = hn::Lanes(d16);
  // Joins two codes in the top byte of 32-bit lanes, then two such bytes in the top bytes of 16-bit
  // lanes.
  const auto bytes = [&](std::size_t i) NF_INLINE_ATTR {
    const auto codes = hn::BitCast(d32, at(i * lanes));
    return hn::Or(codes, hn::ShiftLeft<12>(codes));
  };
  const auto pairs = [&](std::size_t i) NF_INLINE_ATTR {
    return hn::OddEven(hn::BitCast(d16, bytes(i + 1)),
                       hn::BitCast(d16, hn::ShiftRight<16>(bytes(i))));
  };
  const auto upper = hn::And(pairs(0), hn::Set(d16, std::uint16_t{0xFF00}));
  return TransposeQuads(d8, hn::BitCast(d8, hn::Or(upper, hn::ShiftRight<8>(pairs(2)))));
}

inline constexpr std::size_t kPackRun = 2 * HWY_MAX_BYTES;  // items of a step of PackBlocks

/// Encodes and packs the blocks of one row, and prefetches as many items at `next` if it is not
/// null. The last partial step reads up to kPackRun random bytes past the row's own.
template <Scheme S, class T, class Coder>
HWY_INLINE void PackBlocks(const std::byte* in, std::size_t blocks, const float* scales,
                           const Coder& coder, const VectorWriter& out, const std::byte* next) {
  const std::size_t step = 2 * hn::Lanes(D8()), items = blocks * S::kBlock.cols;
  const auto run = [&](auto d8, const std::byte* from, const float* scales_of,
                       const Coder& coder_of) NF_INLINE_ATTR {
    return PackCodes(d8, [&](std::size_t i) NF_INLINE_ATTR {
      return TopCodes<S, T>(hn::Repartition<std::uint16_t, decltype(d8)>(), from, i, scales_of,
                            coder_of);
    });
  };
  const auto packed = [&](auto d8, std::size_t i) NF_INLINE_ATTR {
    return run(d8, in + i * kItemSize<T>, scales + i / S::kBlock.cols, coder.From(i));
  };
  std::size_t i = 0;
  for (; i + step <= items; i += step) {
    if (next != nullptr) PrefetchBytes(next + i * kItemSize<T>, step * kItemSize<T>);
    out.Put(D8(), packed(D8(), i), i / 2);
  }
  if constexpr (hn::MaxLanes(D8()) > S::kBlock.cols) {  // half a step is whole blocks too
    if (i + step / 2 <= items) {
      const hn::Half<D8> half;
      hn::StoreU(packed(half, i), half, out.to + i / 2);
      i += step / 2;
    }
  }
  if (i == items) return;
  ZeroPadded<T, kPackRun> padded;
  padded.Fill(in + i * kItemSize<T>, items - i);
  alignas(64) float scales_of[CeilDiv(kPackRun, S::kBlock.cols)] = {};
  std::copy_n(scales + i / S::kBlock.cols, (items - i) / S::kBlock.cols, scales_of);
  alignas(64) std::uint8_t codes[kPackRun / 2];
  hn::StoreU(run(D8(), padded.items, scales_of, coder.From(i)), D8(), codes);
  std::memcpy(out.to + i / 2, codes, (items - i) / 2);
}

/// Encodes two rows of Lanes(D8) columns and packs them, the first row in the low half of each
/// byte. `scale` has one scale per column.
template <class T, class Coder>
HWY_INLINE hn::Vec<D8> PackColumnRun(const std::byte* first, const std::byte* second,
                                     const LaneScales<DF>& scale, const Coder& first_coder,
                                     const Coder& second_coder) {
  const hn::Repartition<std::uint16_t, D8> d16;
  const hn::Repartition<std::uint32_t, D8> d32;
  const auto codes = [&](const std::byte* row, const Coder& coder, std::size_t i) NF_INLINE_ATTR {
    const std::size_t at = i * hn::Lanes(d16);
    const std::byte* from = row + at * kItemSize<T>;
    if constexpr (kItemSize<T> == 2) {
      return coder.template Codes16<T>(d16, LoadItems(d16, from), scale(2 * i), scale(2 * i + 1),
                                       at);
    } else {
      constexpr Inputs kInputs = Coder::kKind;
      const std::size_t lanes = hn::Lanes(d32);
      const auto low = LoadItems(d32, from), high = LoadItems(d32, from + lanes * 4);
      return SignedPairs(d32, coder.Codes32(d32, low, scale(2 * i), at),
                         coder.Codes32(d32, high, scale(2 * i + 1), at + lanes),
                         Signs<kInputs>(d32, low), Signs<kInputs>(d32, high));
    }
  };
  const auto both = [&](std::size_t i) NF_INLINE_ATTR {  // in upper bytes, zeros below
    return hn::Or(codes(second, second_coder, i), hn::ShiftRight<4>(codes(first, first_coder, i)));
  };
  if constexpr (kItemSize<T> == 2) {
    return hn::ConcatOdd(D8(), hn::BitCast(D8(), both(1)), hn::BitCast(D8(), both(0)));
  } else {
    return TransposeQuads(D8(), hn::BitCast(D8(), hn::Or(both(0), hn::ShiftRight<8>(both(1)))));
  }
}

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
