// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include "narrowfloat/kernels/cpu/micro_kernels.h"

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/blocks-inl.h"
#include "narrowfloat/kernels/cpu/micro_scales-inl.h"
#include "narrowfloat/kernels/cpu/transpose-inl.h"
#include "narrowfloat/kernels/dcheck.h"
#include "narrowfloat/numerics/scale.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

using cpu::MicroRun;
using cpu::MicroRuns;
using cpu::MicroScales;

template <class T, std::size_t kBlock>
bool BlockAmax(const std::byte* items, std::size_t blocks, std::byte* amaxes) noexcept {
  constexpr std::size_t kMost = cpu::kMicroRun / kBlock;
  NF_DCHECK(blocks > 0 && blocks <= kMost);
  const auto compute = [&]<Inputs kInputs>() NF_INLINE_ATTR {
    return BlockAmaxes<T, kInputs, kBlock, kMost>(items, blocks, amaxes,
                                                  [](auto&&...) NF_INLINE_ATTR {});
  };
  if (compute.template operator()<Inputs::kFinite>() < kInfinityBits<T>) return true;
  compute.template operator()<Inputs::kAll>();
  return false;
}

template <class T>
bool RowAmax(const std::byte* items, std::size_t blocks, std::byte* amaxes,
             std::byte* of_columns) noexcept {
  NF_DCHECK(blocks > 0 && blocks <= cpu::kMicroBlocks && IsLineAligned(of_columns));
  using I = std::make_signed_t<BitsOf<T> >;
  const hn::CappedTag<I, kMxBlock> di;
  auto* maxima = reinterpret_cast<I*>(of_columns);
  const auto update = [&](hn::Vec<decltype(di)> magnitudes, std::size_t i) NF_INLINE_ATTR {
    hn::StoreU(hn::Max(hn::LoadU(di, maxima + i), magnitudes), di, maxima + i);
  };
  return BlockAmaxes<T, Inputs::kFinite, kMxBlock, cpu::kMicroBlocks>(items, blocks, amaxes,
                                                                      update) < kInfinityBits<T>;
}

/// Implements MicroColumnAmaxFn. 3 ops for each vector of items: load, clear the sign, maximum; 5
/// with kAll.
template <class T, Inputs kInputs>
bool ColumnAmax(const cpu::ColumnRows& rows, std::size_t cols, std::byte* amaxes) noexcept {
  NF_DCHECK(cols % hn::Lanes(D8()) == 0 && cols <= cpu::kMicroCols && IsLineAligned(amaxes));
  auto* maxima = reinterpret_cast<std::make_signed_t<BitsOf<T> >*>(amaxes);
  const bool prefetches = kRowsAhead<T> > 0 && rows.next != nullptr;
  const std::size_t last = rows.count - 1;
  std::uint32_t most = 0;
  for (std::size_t r = 0, next = 0; r < rows.count; r += kRowsPerPass<T>, next += kRowsAhead<T>) {
    // A copy, so that the addresses stay in registers. The last row is repeated if rows are
    // missing.
    const std::byte* pass[kRowsPerPass<T>];
    for (std::size_t i = 0; i < kRowsPerPass<T>; ++i) pass[i] = rows.items[std::min(r + i, last)];
    const std::byte* ahead[kRowsAhead<T> + 1];  // an array must not be empty
    for (std::size_t i = 0; prefetches && i < kRowsAhead<T>; ++i)
      ahead[i] = rows.next + static_cast<std::ptrdiff_t>(std::min(next + i, last)) * rows.stride;
    const bool first = r == 0 && kInputs == Inputs::kFinite;
    most = std::max(most, ColumnMaximaOfPass<T, kInputs>(pass, prefetches ? ahead : nullptr, cols,
                                                         first, maxima));
  }
  return most < kInfinityBits<T>;
}

/// Number of the blocks that a vector of codes holds, or 1.
template <std::size_t kBlock>
inline constexpr std::size_t kBlocksOfVector = std::max(hn::MaxLanes(D8()) / kBlock,
                                                        std::size_t{1});

/// Returns the index of the block of kBlock items that holds the i-th sub-vector of items, with
/// lanes of `bytes` bytes. A vector of 16-bit items widens to two fp32 sub-vectors: its even and
/// its odd items.
template <class T, std::size_t kBlock>
constexpr std::size_t BlockOf(std::size_t i, std::size_t bytes) {
  constexpr std::size_t kItems = hn::MaxLanes(DF()) * sizeof(float) / kItemSize<T>;
  return i / (bytes / kItemSize<T>)*kItems / kBlock;
}

/// Provides EncodeRun with the scales of a vector's blocks from the j-th on, or with their
/// PowerConstants. Copies them: if it read them from memory, the compiler would load them again
/// after each store of codes.
template <class T, std::size_t kBlock>
struct BlockScaleOf {
  HWY_INLINE BlockScaleOf(const MicroScales& of, std::size_t j) {
    std::copy_n(of.scale + j, kBlocksOfVector<kBlock>, scale);
  }
  float scale[kBlocksOfVector<kBlock>];
  HWY_INLINE hn::Vec<DF> operator()(std::size_t i) const {
    return hn::Set(DF(), scale[BlockOf<T, kBlock>(i, sizeof(float))]);
  }
};
template <class T, std::size_t kBlock>
struct BlockPowersOfTwo {
  HWY_INLINE BlockPowersOfTwo(const MicroScales& of, std::size_t j) {
    std::copy_n(of.floor + j, kBlocksOfVector<kBlock>, floor);
    std::copy_n(of.multiplier + j, kBlocksOfVector<kBlock>, multiplier);
  }
  std::uint32_t floor[kBlocksOfVector<kBlock>];
  float multiplier[kBlocksOfVector<kBlock>];
  HWY_INLINE auto Floor(std::size_t i) const {
    const hn::Repartition<FloorBits<T>, DF> d;
    return hn::BitCast(d, hn::Set(D32(), floor[BlockOf<T, kBlock>(i, sizeof(FloorBits<T>))]));
  }
  HWY_INLINE hn::Vec<DF> Multiplier(std::size_t i) const {
    return hn::Set(DF(), multiplier[BlockOf<T, kBlock>(i, sizeof(float))]);
  }
};

/// The members of EncodeKernels.
enum class Encoder : std::uint8_t { kPowersOfTwo, kFinite, kAll };
template <Encoder kEncoder>
inline constexpr Inputs kInputsOf = kEncoder == Encoder::kAll ? Inputs::kAll : Inputs::kFinite;

/// Changes `run` from row r to row r + 1.
HWY_INLINE void Advance(std::size_t r, MicroRun& run, const MicroRuns& runs) {
  const bool ends_row = ((r + 1) & (runs.pieces - 1)) == 0;
  const auto others = static_cast<std::ptrdiff_t>(runs.pieces - 1) * runs.piece_stride;
  run.items += runs.item_stride;
  run.next += ends_row ? runs.item_stride - others : runs.piece_stride;
  run.codes += runs.code_stride;
  if (run.copy != nullptr) run.copy += runs.copy_stride;
}

/// Calls encode(run, store) for each run. store(d, vector, i) writes codes to run.codes + i and to
/// the copy, if there is one. Requires: non-temporal codes are aligned to vectors if there is a
/// copy or if kMayShift is false.
template <bool kMayShift, class Encode>
HWY_INLINE void ForEachRun(const MicroRuns& all, const Encode& encode) {
  const MicroRuns runs = all;  // a copy, so that it stays in registers
  MicroRun in = runs.first;
  for (std::size_t r = 0; r < runs.rows; Advance(r++, in, runs)) {
    const VectorWriter out = WriterTo(in.codes, in.nontemporal);
    const auto encode_to = [&](auto& codes) NF_INLINE_ATTR {
      encode(in,
             [&](auto d, auto vector, std::size_t i) NF_INLINE_ATTR { codes.Put(d, vector, i); });
    };
    if (in.copy != nullptr) {
      encode(in, [&](auto d, auto vector, std::size_t i) NF_INLINE_ATTR {
        out.Put(d, vector, i);
        hn::StoreU(vector, d, reinterpret_cast<std::uint8_t*>(in.copy) + i);
      });
    } else if constexpr (kMayShift) {
      WithWriter(out, encode_to);
    } else {
      encode_to(out);
    }
  }
}

/// Calls encode(i) for each whole step of codes of a run. Returns the index of the first code after
/// these. Runs as wide as a patch are unrolled: as a loop over two vectors of 512 bits, they took
/// 1.2 to 1.3 times as long on a Zen 4.
template <std::size_t kStep, class Encode>
HWY_INLINE std::size_t ForEachStep(std::size_t count, const Encode& encode) {
  std::size_t i = 0;
  if (count == kTransposedCols) {
#pragma GCC unroll 8
    for (; i < kTransposedCols; i += kStep) encode(i);
  } else {
    for (; i + kStep <= count; i += kStep) encode(i);
  }
  return i;
}

/// Implements EncodeFn for blocks. A step is a block or the blocks of one vector. The scale of a
/// single block stays in registers for all rows. An odd last MX block fills half a vector of 512
/// bits: the vector has its items twice, and half of the codes are stored.
template <FloatFormat F, class T, std::size_t kBlock, Encoder kEncoder>
void EncodeBlocks(const MicroRuns& runs, std::size_t blocks, const MicroScales& scales) noexcept {
  NF_DCHECK(blocks <= cpu::kMicroRun / kBlock);
  const MicroScales of = scales;
  using ScalesAt = std::conditional_t<kEncoder == Encoder::kPowersOfTwo,
                                      BlockPowersOfTwo<T, kBlock>, BlockScaleOf<T, kBlock> >;
  constexpr Inputs kInputs = kInputsOf<kEncoder>;
  constexpr std::size_t kLanes = hn::MaxLanes(D8()), kStep = std::max(kLanes, kBlock);
  const auto encode = [](const MicroRun& in, std::size_t first, const ScalesAt& scales_of,
                         const auto& store) NF_INLINE_ATTR {
    for (std::size_t at = first; at < first + kStep; at += kLanes) {
      PrefetchBytes(in.next + at * kItemSize<T>, kLanes * kItemSize<T>);
      store(D8(), EncodeRun<F, T, kInputs>(in.items + at * kItemSize<T>, scales_of), at);
    }
  };
  if (kBlock > kMxBlock && blocks == 1) {
    const ScalesAt scales_of(of, 0);
    return ForEachRun<true>(runs, [&](const MicroRun& in, const auto& store)
                                      NF_INLINE_ATTR { encode(in, 0, scales_of, store); });
  }
  ForEachRun<true>(runs, [&](const MicroRun& in, const auto& store) NF_INLINE_ATTR {
    const std::size_t i =
        ForEachStep<kStep>(blocks * kBlock, [&](std::size_t first) NF_INLINE_ATTR {
          encode(in, first, ScalesAt(of, first / kBlock), store);
        });
    if constexpr (kLanes > kBlock) {
      if (i == blocks * kBlock) return;
      constexpr std::size_t kBytes = kBlock * kItemSize<T>;
      PrefetchBytes(in.next + i * kItemSize<T>, kBytes);
      alignas(64) std::byte twice[2 * kBytes];  // written by whole vectors, as it is read
      CopyBytes(in.items + i * kItemSize<T>, kBytes, twice);
      CopyBytes(in.items + i * kItemSize<T>, kBytes, twice + kBytes);
      const hn::Half<D8> half;
      const ScalesAt scales_of(of, i / kBlock);
      store(half, hn::LowerHalf(half, EncodeRun<F, T, kInputs>(twice, scales_of)), i);
    }
  });
}

/// Returns the provider of the scales of the columns from `col` on for EncodeRun.
template <class T, Encoder kEncoder>
HWY_INLINE auto ColumnScalesAt(const MicroScales& scales, std::size_t col) {
  if constexpr (kEncoder == Encoder::kPowersOfTwo) {
    return LanePowersOfTwo<T>{reinterpret_cast<const FloorBits<T>*>(scales.floor) + col,
                              scales.multiplier + col};
  } else {
    return LaneScales{scales.scale + col};
  }
}

template <FloatFormat F, class T, Encoder kEncoder>
void EncodeColumns(const MicroRuns& runs, std::size_t cols, const MicroScales& scales) noexcept {
  const D8 d8;
  NF_DCHECK(cols % hn::Lanes(d8) == 0 && cols <= cpu::kMicroCols);
  const MicroScales of = scales;
  ForEachRun<true>(runs, [&](const MicroRun& in, const auto& store) NF_INLINE_ATTR {
    ForEachStep<hn::MaxLanes(d8)>(cols, [&](std::size_t c) NF_INLINE_ATTR {
      PrefetchBytes(in.next + c * kItemSize<T>, hn::Lanes(d8) * kItemSize<T>);
      const std::byte* items = in.items + c * kItemSize<T>;
      const auto scale = ColumnScalesAt<T, kEncoder>(of, c);
      store(d8, EncodeRun<F, T, kInputsOf<kEncoder> >(items, scale), c);
    });
  });
}

template <FloatFormat F, class T>
void EncodeBoth(const MicroRun& run, std::size_t cols, const MicroScales& of_blocks,
                const MicroScales& of_columns) noexcept {
  constexpr Inputs kInputs = Inputs::kFinite;
  const D8 d8;
  NF_DCHECK(cols % hn::Lanes(d8) == 0 && cols % kMxBlock == 0 && cols <= cpu::kMicroCols);
  const MicroRun in = run;
  const MicroScales blocks = of_blocks, columns = of_columns;
  auto* to = reinterpret_cast<std::uint8_t*>(in.copy);
  const auto encode = [&](std::size_t c, auto& row_codes) NF_INLINE_ATTR {
    const std::byte* items = in.items + c * kItemSize<T>;
    PrefetchBytes(in.next + c * kItemSize<T>, hn::Lanes(d8) * kItemSize<T>);
    const BlockPowersOfTwo<T, kMxBlock> by_row(blocks, c / kMxBlock);
    const auto by_column = ColumnScalesAt<T, Encoder::kPowersOfTwo>(columns, c);
    if constexpr (kItemSize<T> == 2 && !kByTable<F, T>) {
      // Half a vector at a time, so that the items stay in registers for both directions.
      const D16 d16;
      const auto low = LoadItems(d16, items);
      const auto row_low = Encode16<F, T, kInputs>(low, by_row, 0);
      const auto column_low = Encode16<F, T, kInputs>(low, by_column, 0);
      const auto high = LoadItems(d16, items + hn::Lanes(d16) * 2);
      const auto row_high = Encode16<F, T, kInputs>(high, by_row, 1);
      const auto column_high = Encode16<F, T, kInputs>(high, by_column, 1);
      row_codes.Put(d8, UpperBytes(row_low, row_high), c);
      hn::StoreU(UpperBytes(column_low, column_high), d8, to + c);
    } else {
      const auto row = EncodeRun<F, T, kInputs>(items, by_row);
      const auto column = EncodeRun<F, T, kInputs>(items, by_column);
      row_codes.Put(d8, row, c);
      hn::StoreU(column, d8, to + c);
    }
  };
  WithWriter(WriterTo(in.codes, in.nontemporal), [&](auto& row_codes) NF_INLINE_ATTR {
    for (std::size_t c = 0; c < cols; c += hn::Lanes(d8)) encode(c, row_codes);
  });
}

/// Returns the distance in bytes from the encoded row to the row that is prefetched into the
/// first-level cache, or 0 for no prefetch. Loads of unaligned rows cross lines and miss this
/// cache.
HWY_INLINE std::ptrdiff_t UnalignedAhead(const MicroRuns& runs) {
  const auto place = reinterpret_cast<std::uintptr_t>(runs.first.items) |
                     static_cast<std::uintptr_t>(runs.item_stride);
  return runs.rows == 1 || place % kLineBytes == 0 ? 0 : 12 * runs.item_stride;
}

/// Encodes runs under one scale and returns the largest magnitude pattern. With kFinite, it is
/// above infinity's if an item is NaN.
template <FloatFormat F, class T, Inputs kInputs, class Scale>
HWY_INLINE std::uint32_t EncodeRunsUniformly(const MicroRuns& runs, std::size_t count,
                                             const Scale& scale) {
  const D8 d8;
  const MagnitudeTag<T> di;
  const std::size_t lanes = hn::Lanes(d8);
  auto largest = hn::Zero(di);
  const auto encode = [&](const std::byte* from) NF_INLINE_ATTR {
    alignas(64) std::byte items[HWY_MAX_BYTES * kItemSize<T>];  // stays in registers
    for (std::size_t i = 0; i < lanes * kItemSize<T>; i += hn::Lanes(di) * kItemSize<T>) {
      const auto loaded = Opaque(LoadItems(di, from + i));
      largest = hn::Max(largest, Magnitudes<T, kInputs>(di, loaded));
      hn::Store(loaded, di, reinterpret_cast<hn::TFromD<decltype(di)>*>(items + i));
    }
    return EncodeRun<F, T, kInputs>(items, scale);
  };
  const std::ptrdiff_t ahead = UnalignedAhead(runs);
  ForEachRun<false>(runs, [&](const MicroRun& in, const auto& store) NF_INLINE_ATTR {
    for (std::size_t i = 0; ahead != 0 && i <= count * kItemSize<T>; i += kLineBytes)
      hwy::Prefetch(in.items + ahead + i);
    const std::size_t i = ForEachStep<hn::MaxLanes(d8)>(count, [&](std::size_t at) NF_INLINE_ATTR {
      PrefetchBytes(in.next + at * kItemSize<T>, lanes * kItemSize<T>);
      store(d8, encode(in.items + at * kItemSize<T>), at);
    });
    if (i == count) return;
    alignas(64) std::byte tail[HWY_MAX_BYTES * kItemSize<T>];
    cpu::PadItems(in.items + i * kItemSize<T>, (count - i) * kItemSize<T>, sizeof tail, tail);
    alignas(64) std::uint8_t staged[HWY_MAX_BYTES];
    hn::Store(encode(tail), d8, staged);
    std::memcpy(in.codes + i, staged, count - i);
    if (in.copy != nullptr) std::memcpy(in.copy + i, staged, count - i);
  });
  return LargestLane(di, largest);
}

/// Implements TabulateFn: fills the tables for EncodeSteps. Distances count from one step before
/// the first item that does not round to 0. Under any scale, step kSteps then ends with the last
/// item whose product is at most F's smallest normal number. A step up to there has at most two
/// codes, because codes change at least a step apart. Products of normal items repeat their
/// mantissas in every binade of items, so that 128 excesses are enough.
template <FloatFormat F, class T>
void TabulateUniform(cpu::UniformTables& tables) noexcept {
  tables.are_filled = false;
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (kByTable<F, T>) {
    constexpr std::uint32_t kStep = 1u << kBelowMantissa<F>, kBinade = 1u << T::kMantissaBits;
    constexpr std::uint32_t kEnd = kNormalDistance<F> + kBinade;
    static_assert(sizeof tables.excess == kBinade);
    constexpr float kHalfOfSmallest = narrowfloat::Decode<F>(1) * 0.5f;
    const auto rounds_to_zero = [&](std::uint32_t pattern) {
      return MagnitudeValue<T>(pattern) * tables.scale <= kHalfOfSmallest;
    };
    const float bound = kHalfOfSmallest / tables.scale;
    if (!(bound <= kLargestFloat)) return;
    // The last pattern that rounds to 0.
    std::uint32_t zero = std::bit_cast<std::uint32_t>(bound) >> 16;
    while (rounds_to_zero(zero + 1)) ++zero;
    while (!rounds_to_zero(zero)) --zero;
    // All items that are looked up must be normal numbers.
    if (zero < kBinade + kStep || zero + kEnd > T::kMaxCode) return;
    const std::uint32_t floor = zero - (kStep - 1);

    const D8 d8;
    alignas(64) std::uint8_t codes[kEnd];  // by distance
    for (std::size_t i = 0; i < kEnd; i += hn::Lanes(d8)) {
      alignas(64) std::uint16_t patterns[hn::MaxLanes(d8)];
      for (std::size_t k = 0; k < hn::Lanes(d8); ++k)
        patterns[k] = static_cast<std::uint16_t>(floor + i + k);
      const auto* items = reinterpret_cast<const std::byte*>(patterns);
      const UniformScale scale{tables.scale};
      hn::Store(EncodeRun<F, T, Inputs::kFinite>(items, scale), d8, codes + i);
    }
    const auto code_at = [&](std::uint32_t distance) { return std::uint32_t{codes[distance]}; };
    FillSteps<F>(code_at, tables.excess, tables.code, tables.last);
    tables.floor = static_cast<std::uint16_t>(floor);
    tables.are_filled = true;
  }
#endif
}

/// Encodes finite items as EncodeRunsUniformly does, by the tables if they are filled.
template <FloatFormat F, class T>
HWY_INLINE std::uint32_t EncodeFiniteUniformly(const MicroRuns& runs, std::size_t count,
                                               const cpu::UniformTables& tables) {
  constexpr Inputs kInputs = Inputs::kFinite;
  if constexpr (std::is_same_v<T, Float16>) {  // kHalfRebias is multiplied into the scale
    const RebiasedScale rebiased{{tables.scale * kHalfRebias}};
    return EncodeRunsUniformly<F, T, kInputs>(runs, count, rebiased);
  }
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (kByTable<F, T>) {
    if (tables.are_filled) {
      const D8 d8;
      const auto lower = hn::Load(d8, tables.excess), upper = hn::Load(d8, tables.excess + 64);
      const auto code = hn::Load(d8, tables.code), last = hn::Load(d8, tables.last);
      const auto floor = hn::Set(D16(), tables.floor);
      const auto excess_of = [&](hn::Vec<D8> below) NF_INLINE_ATTR {
        return hn::Vec<D8>{_mm512_permutex2var_epi8(lower.raw, below.raw, upper.raw)};
      };
      const auto encode = [&](hn::Vec<D16> low, hn::Vec<D16> high) NF_INLINE_ATTR {
        return EncodeSteps<F>(low, high, floor, floor, excess_of, code, last);
      };
      return EncodeRunsUniformly<F, T, kInputs>(runs, count, encode);
    }
  }
#endif
  return EncodeRunsUniformly<F, T, kInputs>(runs, count, UniformScale{tables.scale});
}

template <FloatFormat F, class T>
void EncodeUniform(const MicroRuns& runs, std::size_t count, cpu::UniformState& state) noexcept {
  const float scale = state.tables.scale;
  NF_DCHECK(scale > 0.0f && scale <= kLargestFloat);
  // The amax times the scale computed from it may exceed the largest value by a rounding error.
  constexpr float kRoundsToMax = kMaxValue<F> * (1.0f + 0x1p-10f);
  state.all_finite &= !std::is_same_v<T, Float16> || scale < RebiasedScale::kTooLarge;
  std::uint32_t bits = 0;
  if (state.all_finite) {
    bits = EncodeFiniteUniformly<F, T>(runs, count, state.tables);
    state.all_finite = bits < kInfinityBits<T> && MagnitudeValue<T>(bits) * scale <= kRoundsToMax;
  }
  if (!state.all_finite)
    bits = EncodeRunsUniformly<F, T, Inputs::kAll>(runs, count, UniformScale{scale});
  state.largest = std::max(state.largest, bits);
}

/// Implements TransposeFn. Gathers kSquareSide columns, then writes each as whole lines: rows of
/// the output are often a power of two apart and share a cache set.
void Transpose(const std::byte* patch, std::size_t rows, std::size_t cols, std::byte* out,
               std::size_t stride, bool nontemporal) noexcept {
  NF_DCHECK(rows <= kTransposedRun && cols <= kTransposedCols);
  alignas(64) std::uint8_t columns[kSquareSide][kTransposedRun];
  const auto* codes = reinterpret_cast<const std::uint8_t*>(patch);
  for (std::size_t c = 0; c < cols; c += kSquareSide) {
    for (std::size_t r = 0; r < rows; r += hn::Lanes(D8())) {
      TransposeSquares(codes + r * kTransposedCols + c, kTransposedCols, columns[0] + r,
                       kTransposedRun);
    }
    for (std::size_t i = 0; i < std::min(kSquareSide, cols - c); ++i) {
      const auto* column = reinterpret_cast<const std::byte*>(columns[i]);
      std::byte* to = out + (c + i) * stride;
      nontemporal ? CopyNontemporal(column, rows, to) : CopyBytes(column, rows, to);
    }
  }
}

template <class T>
constexpr cpu::AmaxKernels kAmaxKernels{
    .of_blocks = {&BlockAmax<T, cpu::kAmaxLengths[0]>, &BlockAmax<T, cpu::kAmaxLengths[1]>,
                  &BlockAmax<T, cpu::kAmaxLengths[2]>, &BlockAmax<T, cpu::kAmaxLengths[3]>},
    .of_row = &RowAmax<T>,
    .of_columns = &ColumnAmax<T, Inputs::kFinite>,
    .of_columns_of_all = &ColumnAmax<T, Inputs::kAll>,
};

template <FloatFormat F, class T, std::size_t kBlock>
constexpr cpu::EncodeKernels kEncodeBlocks{&EncodeBlocks<F, T, kBlock, Encoder::kPowersOfTwo>,
                                           &EncodeBlocks<F, T, kBlock, Encoder::kFinite>,
                                           &EncodeBlocks<F, T, kBlock, Encoder::kAll>};

template <FloatFormat F, class T>
constexpr cpu::FormatKernels kFormatKernels{
    .encode_blocks = {kEncodeBlocks<F, T, cpu::kBlockLengths[0]>,
                      kEncodeBlocks<F, T, cpu::kBlockLengths[1]>,
                      kEncodeBlocks<F, T, cpu::kBlockLengths[2]>},
    .scales = {cpu::ScaleKernels{&ComputeScales<Places::kBlocks, RuleFloat32, F, T>,
                                 &ComputeScales<Places::kColumns, RuleFloat32, F, T>},
               kE8M0Scales<F, T>},
    .encode_columns = {&EncodeColumns<F, T, Encoder::kPowersOfTwo>,
                       &EncodeColumns<F, T, Encoder::kFinite>, &EncodeColumns<F, T, Encoder::kAll>},
    .encode_both = &EncodeBoth<F, T>,
    .uniform = {&TabulateUniform<F, T>, &EncodeUniform<F, T>},
};

}  // namespace

const cpu::MicroKernels* MicroKernelsTable() {
  static constexpr cpu::MicroKernels kTable{
      .vector_bytes = hn::MaxLanes(D8()),
      .copy_nontemporal = &CopyNontemporal,
      .transpose = &Transpose,
      .amax = ArrayOf(FloatTypes{}, []<class T>() { return kAmaxKernels<T>; }),
      .formats = ArrayOf(cpu::MicroFormats{},
                         []<class F>() {
                           return ArrayOf(FloatTypes{},
                                          []<class T>() { return kFormatKernels<F, T>; });
                         }),
  };
  return &kTable;
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
