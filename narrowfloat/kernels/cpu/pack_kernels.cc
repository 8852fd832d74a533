// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include "narrowfloat/kernels/cpu/pack_kernels.h"

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/four_over_six-inl.h"
#include "narrowfloat/kernels/cpu/nontemporal-inl.h"
#include "narrowfloat/kernels/cpu/pack-inl.h"
#include "narrowfloat/kernels/cpu/scales-inl.h"
#include "narrowfloat/kernels/cpu/transpose-inl.h"
#include "narrowfloat/kernels/dcheck.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

using cpu::PackScales;
using cpu::TwoLevelFactors;

/// Calls compute(j, code, scale) for whole vectors of `count` places; stores the code and the
/// scale.
template <class T, Places kPlaces, class Compute>
HWY_INLINE void ForEachScale(std::size_t count, const PackScales& out, const Compute& compute) {
  NF_DCHECK(count <= cpu::kPackPlaces);
  NF_DCHECK(kPlaces == Places::kBlocks || count % hn::Lanes(D8()) == 0);
  const PackScales to = out;
  const std::size_t lanes = hn::Lanes(DF());
  hn::Vec<DI> code;
  hn::Vec<DF> scale;
  if constexpr (kPlaces == Places::kBlocks) {
    for (std::size_t j = 0; j < count; j += lanes) {
      compute(j, code, scale);
      StoreBytes(code, to.scale_inv + j);
      hn::StoreU(scale, DF(), to.scale + j);
    }
  } else {
    hn::Vec<DF> high;
    for (std::size_t j = 0; j < count; j += 2 * lanes) {
      compute(j, code, scale);
      StoreBytes(code, to.scale_inv + j);
      compute(j + lanes, code, high);
      StoreBytes(code, to.scale_inv + j + lanes);
      StoreLanes<T>(scale, high, to.scale + j);
    }
  }
}

template <class T, Places kPlaces>
bool ComputeTwoLevels(const std::byte* amaxes, std::size_t count, const TwoLevelFactors& factors,
                      const PackScales& scales) noexcept {
  using F = E4M3;
  auto slow = hn::Zero(DF());
  ForEachScale<T, kPlaces>(
      count, scales, [&](std::size_t j, hn::Vec<DI>& code, hn::Vec<DF>& scale) NF_INLINE_ATTR {
        const auto amax = AmaxValues<T>(amaxes, j);
        const auto wanted = hn::Mul(amax, hn::Load(DF(), factors.encode_over_max + j));
        hn::Vec<DF> value;
        code = hn::BitCast(
            DI(),
            TwoLevelScales<F>(wanted, hn::Load(DF(), factors.reciprocal_encode + j), value, scale));
        slow = hn::Or(slow, hn::VecFromMask(DF(), NeedsSlowPath<F>(wanted, amax)));
      });
  return hn::AllFalse(DF(), hn::MaskFromVec(slow));
}

/// Implements PackScalesFn. Returns true: such scales keep every product within the largest code.
template <class T, Places kPlaces>
bool ComputeE8M0(const std::byte* amaxes, std::size_t count, const TwoLevelFactors& /*factors*/,
                 const PackScales& scales) noexcept {
  auto unused = hn::Zero(DI());
  ForEachScale<T, kPlaces>(
      count, scales, [&](std::size_t j, hn::Vec<DI>& code, hn::Vec<DF>& scale) NF_INLINE_ATTR {
        RuleE8M0<E2M1, T>::Compute(AmaxValues<T>(amaxes, j), {}, code, scale, unused);
      });
  return true;
}

template <class T, class Coder>
void PackRow(const cpu::MicroRun& run, std::size_t units, const float* scales,
             const std::uint8_t* random) noexcept {
  NF_DCHECK(units <= cpu::kMicroRun / cpu::kPackUnit);
  constexpr std::size_t kStep = 2 * hn::MaxLanes(D8());
  const std::size_t items = units * cpu::kPackUnit;
  const std::byte *in = run.items, *next = run.next;
  const Coder coder{random};
  const auto pack = [&](const std::byte* from, const float* scales_of,
                        [[maybe_unused]] const Coder& coder_of) NF_INLINE_ATTR {
#if HWY_ARCH_X86
    if constexpr (kItemSize<T> == 2 && std::is_same_v<Coder, NearestCoder<E2M1, Inputs::kFinite>>)
      return PackFinite<T>(from, scales_of, NearestWhole());
#endif
#if HWY_TARGET <= HWY_AVX3
    if constexpr (kItemSize<T> == 2 && std::is_same_v<Coder, StochasticCoder<Inputs::kFinite>>)
      return PackFinite<T>(from, scales_of, StochasticWhole{coder_of.random});
#endif
    return PackCodes([&](std::size_t i)
                         NF_INLINE_ATTR { return TopCodes<T>(from, i, scales_of, coder_of); });
  };
  std::size_t i = 0;
  WithWriter(WriterTo(run.codes, run.nontemporal), [&](auto& out) NF_INLINE_ATTR {
    for (; i + kStep <= items; i += kStep) {
      PrefetchBytes(next + i * kItemSize<T>, kStep * kItemSize<T>);
      const auto* scales_of = scales + i / cpu::kPackUnit;
      out.Put(D8(), pack(in + i * kItemSize<T>, scales_of, coder.From(i)), i / 2);
    }
  });
  if (i == items) return;
  alignas(64) std::byte padded[kStep * kItemSize<T>];
  cpu::PadItems(in + i * kItemSize<T>, (items - i) * kItemSize<T>, sizeof padded, padded);
  alignas(64) float scales_of[kStep / cpu::kPackUnit] = {};
  std::copy_n(scales + i / cpu::kPackUnit, (items - i) / cpu::kPackUnit, scales_of);
  alignas(64) std::uint8_t codes[kStep / 2];
  hn::StoreU(pack(padded, scales_of, coder.From(i)), D8(), codes);
  std::memcpy(run.codes + i / 2, codes, (items - i) / 2);
}

template <class T, class Coder>
void PackColumns(const cpu::PackedStrip& strip, const float* scale, const std::uint8_t* random,
                 std::byte* codes) noexcept {
  NF_DCHECK(strip.count % 2 == 0 && strip.cols % hn::Lanes(D8()) == 0 &&
            strip.cols <= kTransposedCols);
  const cpu::PackedStrip in = strip;  // a copy, so that it stays in registers
  const Coder coder{random};
  const std::size_t lanes = hn::Lanes(D8());
  for (std::size_t r = 0; r < in.count; r += 2, codes += kTransposedCols) {
    for (std::size_t c = 0; c < in.cols; c += lanes) {
      const std::size_t from = c * kItemSize<T>;
      PrefetchBytes(in.next[r] + from, lanes * kItemSize<T>);
      PrefetchBytes(in.next[r + 1] + from, lanes * kItemSize<T>);
      const auto packed = PackColumnRun<T>(
          in.rows[r] + from, in.rows[r + 1] + from, LaneScales{scale + c},
          coder.From(r * kTransposedCols + c), coder.From((r + 1) * kTransposedCols + c));
      hn::StoreU(packed, D8(), reinterpret_cast<std::uint8_t*>(codes + c));
    }
  }
}

void RandomOfColumns(const RandomState& state, std::uint64_t first, std::uint64_t step,
                     std::size_t cols, std::uint8_t* out) noexcept {
  static_assert(kSquareSide == kRandomRun);
  NF_DCHECK(cols <= kTransposedCols);
  alignas(64) std::uint8_t drawn[kTransposedCols * kRandomRun];  // column by column
  FillRandom(state, first, step, cols, drawn);
  for (std::size_t c = 0; c < cols; c += hn::Lanes(D8()))
    TransposeSquares(drawn + c * kRandomRun, kRandomRun, out + c, kTransposedCols);
}

/// Implements CandidatesFn. Tests only the candidate that maps the amax to 6: the stored scale of
/// the other one is not smaller, so that its products are not larger.
template <class T>
bool ComputeCandidates(const std::byte* amaxes, std::size_t count, const TwoLevelFactors& factors,
                       cpu::ScaleCandidates& candidates) noexcept {
  using F = E4M3;
  NF_DCHECK(count <= cpu::kPackPlaces);
  const DF df;
  auto slow = hn::Zero(df);
  for (std::size_t j = 0; j < count; j += hn::Lanes(df)) {
    const auto amax = AmaxValues<T>(amaxes, j);
    const auto to_six =
        hn::Mul(hn::Div(amax, hn::Set(df, kMaxValue<E2M1>)), hn::Load(df, factors.encode + j));
    const auto reciprocal_encode = hn::Load(df, factors.reciprocal_encode + j);
    const auto set = [&](std::size_t k, hn::Vec<DF> wanted) NF_INLINE_ATTR {
      hn::Vec<DF> value, scale;
      const auto code = TwoLevelScales<F>(wanted, reciprocal_encode, value, scale);
      auto& to = candidates.of[k];
      hn::Store(code, D32(), to.code + j);
      hn::Store(value, df, to.value + j);
      hn::Store(scale, df, to.scale + j);
    };
    set(0, hn::Mul(to_six, hn::Set(df, 1.5f)));
    set(1, to_six);
    slow = hn::Or(slow, hn::VecFromMask(df, NeedsSlowPath<F>(to_six, amax)));
  }
  return hn::AllFalse(df, hn::MaskFromVec(slow));
}

template <class T>
void ErrorsOfRow(const std::byte* items, std::size_t blocks, const TwoLevelFactors& factors,
                 const cpu::ErrorRule& rule, const cpu::ScaleCandidates& candidates,
                 cpu::CandidateErrors& errors) noexcept {
  NF_DCHECK(blocks > 0 && blocks <= cpu::kMicroRun / cpu::kPackUnit);
  StagedItems staged;
  StageRow<T>(items, blocks, staged);
  ComputeErrors(staged, cpu::kPackUnit, blocks, factors, rule, candidates, errors);
}

template <class T>
void ErrorsOfColumns(const cpu::PackedStrip& strip, const TwoLevelFactors& factors,
                     const cpu::ErrorRule& rule, const cpu::ScaleCandidates& candidates,
                     cpu::CandidateErrors& errors) noexcept {
  NF_DCHECK(strip.count <= cpu::kPackUnit && strip.cols % hn::Lanes(DF()) == 0);
  StagedItems staged;
  for (std::size_t r = 0; r < strip.count; ++r) {
    for (std::size_t c = 0; c < strip.cols; c += hn::Lanes(DF()))
      hn::Store(hn::Abs(LoadFloats<T>(strip.rows[r] + c * kItemSize<T>)), DF(), staged.of[r] + c);
  }
  ComputeErrors(staged, strip.count, strip.cols, factors, rule, candidates, errors);
}

#if HWY_TARGET <= HWY_AVX3
/// Computes the sums of distances of a row's blocks, eight at a time. Stores zeros for the blocks
/// after the last eight, up to a whole vector: Compare returns blocks with two zeros as undecided.
template <class T, bool kSquares>
void EstimateRow(const std::byte* items, std::size_t blocks, const TwoLevelFactors& /*factors*/,
                 const cpu::ErrorRule& /*rule*/, const cpu::ScaleCandidates& candidates,
                 cpu::CandidateErrors& errors) noexcept {
  NF_DCHECK(blocks > 0 && blocks <= cpu::kMicroRun / cpu::kPackUnit);
  constexpr std::size_t kPairs = cpu::kPackUnit / 2;  // of a block
  const DF df;
  const DI di;
  static_assert(hn::MaxLanes(df) == 2 * kPairs);
  const auto of_two_blocks = [&](std::size_t k, std::size_t j) NF_INLINE_ATTR {
    const auto pairs = LoadPairs<T>(items + j * cpu::kPackUnit * kItemSize<T>);
    const auto scale = SpreadScales<kPairs>(candidates.of[k].scale + j, 0);
    return DistancesOfPairs<kSquares>(WidenEven<T, Inputs::kFinite>(pairs),
                                      WidenOdd<T, Inputs::kFinite>(pairs), scale);
  };
  const auto add_adjacent = [&](hn::Vec<DI> low, hn::Vec<DI> high) NF_INLINE_ATTR {
    return hn::Add(hn::ConcatEven(di, high, low), hn::ConcatOdd(di, high, low));
  };
  // Two lanes for each block and candidate: the lanes of the first candidate come first.
  const auto of_four_blocks = [&](std::size_t j) NF_INLINE_ATTR {
    const auto first = add_adjacent(of_two_blocks(0, j), of_two_blocks(0, j + 2));
    const auto second = add_adjacent(of_two_blocks(1, j), of_two_blocks(1, j + 2));
    return add_adjacent(first, second);
  };
  const hn::Half<DF> half;
  const hn::Half<decltype(half)> quarter;
  const auto store = [&](hn::Vec<decltype(half)> of_four, std::size_t j) NF_INLINE_ATTR {
    hn::StoreU(hn::LowerHalf(quarter, of_four), quarter, errors.of[0] + j);
    hn::StoreU(hn::UpperHalf(quarter, of_four), quarter, errors.of[1] + j);
  };
  std::size_t j = 0;
  for (; j + 8 <= blocks; j += 8) {
    const auto first_four = of_four_blocks(j);
    const auto sums = hn::ConvertTo(df, add_adjacent(first_four, of_four_blocks(j + 4)));
    store(hn::LowerHalf(half, sums), j);
    store(hn::UpperHalf(half, sums), j + 4);
  }
  const std::size_t all = RoundUp(blocks, hn::Lanes(df));
  for (float* of : errors.of) std::fill(of + j, of + all, 0.0f);
}

template <class T, bool kSquares>
void EstimateColumns(const cpu::PackedStrip& strip, const TwoLevelFactors& /*factors*/,
                     const cpu::ErrorRule& /*rule*/, const cpu::ScaleCandidates& candidates,
                     cpu::CandidateErrors& errors) noexcept {
  NF_DCHECK(strip.count <= cpu::kPackUnit && strip.count % 2 == 0);
  NF_DCHECK(strip.cols % hn::Lanes(D8()) == 0);
  const DF df;
  const DI di;
  const std::size_t lanes = hn::Lanes(df);
  for (std::size_t c = 0; c < strip.cols; c += 2 * lanes) {
    for (std::size_t k = 0; k < 2; ++k) {
      const auto low = hn::Load(df, candidates.of[k].scale + c);
      const auto high = hn::Load(df, candidates.of[k].scale + c + lanes);
      const auto even_scale = hn::ConcatEven(df, high, low);
      const auto odd_scale = hn::ConcatOdd(df, high, low);
      auto even = hn::Zero(di), odd = even;
      for (std::size_t r = 0; r < strip.count; r += 2) {
        const auto first = LoadPairs<T>(strip.rows[r] + c * kItemSize<T>);
        const auto second = LoadPairs<T>(strip.rows[r + 1] + c * kItemSize<T>);
        even = hn::Add(
            even, DistancesOfPairs<kSquares>(WidenEven<T, Inputs::kFinite>(first),
                                             WidenEven<T, Inputs::kFinite>(second), even_scale));
        odd = hn::Add(odd,
                      DistancesOfPairs<kSquares>(WidenOdd<T, Inputs::kFinite>(first),
                                                 WidenOdd<T, Inputs::kFinite>(second), odd_scale));
      }
      hn::StoreInterleaved2(hn::ConvertTo(df, even), hn::ConvertTo(df, odd), df, errors.of[k] + c);
    }
  }
}
#endif

template <class T, Places kPlaces>
void Choose(const cpu::ScaleCandidates& candidates, const cpu::CandidateErrors& errors,
            std::size_t count, const PackScales& scales) noexcept {
  const DF df;
  const auto &first = candidates.of[0], &second = candidates.of[1];
  ForEachScale<T, kPlaces>(
      count, scales, [&](std::size_t j, hn::Vec<DI>& code, hn::Vec<DF>& scale) NF_INLINE_ATTR {
        const auto is_first =
            hn::Lt(hn::Load(df, errors.of[0] + j), hn::Load(df, errors.of[1] + j));
        scale =
            hn::IfThenElse(is_first, hn::Load(df, first.scale + j), hn::Load(df, second.scale + j));
        const auto codes =
            hn::IfThenElse(hn::RebindMask(D32(), is_first), hn::Load(D32(), first.code + j),
                           hn::Load(D32(), second.code + j));
        code = hn::BitCast(DI(), codes);
      });
}

template <class T>
constexpr cpu::FourOverSixKernels FourOverSixOf() {
  cpu::FourOverSixKernels kernels{.candidates = &ComputeCandidates<T>,
                                  .errors = {&ErrorsOfRow<T>, &ErrorsOfColumns<T>},
                                  .estimates = {},
                                  .choose_of_blocks = &Choose<T, Places::kBlocks>,
                                  .choose_of_columns = &Choose<T, Places::kColumns>};
#if HWY_TARGET <= HWY_AVX3
  if constexpr (kItemSize<T> == 2) {
    kernels.estimates = {
        cpu::EstimateKernels{{&EstimateRow<T, false>, &EstimateColumns<T, false>}, &Compare<false>},
        {{&EstimateRow<T, true>, &EstimateColumns<T, true>}, &Compare<true>}};
  }
#endif
  return kernels;
}

template <class T>
constexpr cpu::PackKernels kPackKernels{
    .scales = {cpu::PackScaleKernels{},
               {&ComputeE8M0<T, Places::kBlocks>, &ComputeE8M0<T, Places::kColumns>},
               {&ComputeTwoLevels<T, Places::kBlocks>, &ComputeTwoLevels<T, Places::kColumns>}},
    .row = {&PackRow<T, NearestCoder<E2M1, Inputs::kFinite>>,
            &PackRow<T, NearestCoder<E2M1, Inputs::kAll>>,
            &PackRow<T, StochasticCoder<Inputs::kFinite>>,
            &PackRow<T, StochasticCoder<Inputs::kAll>>},
    .columns = {&PackColumns<T, NearestCoder<E2M1, Inputs::kFinite>>,
                &PackColumns<T, NearestCoder<E2M1, Inputs::kAll>>,
                &PackColumns<T, StochasticCoder<Inputs::kFinite>>,
                &PackColumns<T, StochasticCoder<Inputs::kAll>>},
    .random_of_row = &FillRandom,
    .random_of_columns = &RandomOfColumns,
    .four_over_six = FourOverSixOf<T>(),
};

}  // namespace

const ByType<cpu::PackKernels>* PackKernelsTable() {
  static constexpr auto kTable = ArrayOf(FloatTypes{}, []<class T>() { return kPackKernels<T>; });
  return &kTable;
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
