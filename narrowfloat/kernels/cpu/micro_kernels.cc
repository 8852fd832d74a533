// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cpu/micro_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/micro_kernels.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/blocks-inl.h"
#include "narrowfloat/kernels/dcheck.h"
#include "narrowfloat/numerics/e8m0.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

const cpu::MicroKernels* Table() {
  return nullptr;
}

#else

using cpu::kMicroBlock;
using cpu::MicroRun;
using cpu::MicroScales;

HWY_INLINE bool IsLineAligned(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % kLine == 0;
}

/// Stores the amaxes of blocks. Returns the largest pattern of all.
/// A vector holds the maxima of one block's lanes. A tree of 128-bit interleavings joins the
/// vectors of as many blocks as 128 bits have lanes: 3 ops for each vector that goes in. Whole
/// vectors of amaxes are stored, because whole vectors are loaded next: a load that covers several
/// narrower stores stalls until these are in the cache.
template <class T, Inputs kInputs>
HWY_INLINE std::uint32_t ComputeAmaxes(const std::byte* items, std::size_t blocks,
                                       std::byte* amaxes) {
  using I = std::make_signed_t<BitsOf<T> >;
  const hn::CappedTag<I, kMicroBlock> di;
  const hn::FixedTag<I, kBlocksPerTree<T> > d128;
  const hn::ScalableTag<I> d;
  const std::size_t lanes = hn::Lanes(di);
  const auto one = [&](std::size_t j) NF_INLINE_ATTR {
    if (j >= blocks) return hn::Zero(di);
    const std::byte* at = items + j * kMicroBlock * kItemSize<T>;
    auto largest = Magnitudes<T, kInputs>(di, LoadItems(di, at));
    for (std::size_t i = lanes; i < kMicroBlock; i += lanes)
      largest = hn::Max(largest, Magnitudes<T, kInputs>(di, LoadItems(di, at + i * kItemSize<T>)));
    return largest;
  };
  const auto two = [&](std::size_t j)
                       NF_INLINE_ATTR { return MergeMaxima<I>(di, one(j), one(j + 1)); };
  const auto four = [&](std::size_t j) NF_INLINE_ATTR {
    if constexpr (sizeof(I) == 4) return MergeMaxima<std::int64_t>(di, two(j), two(j + 2));
    return MergeMaxima<std::int32_t>(di, two(j), two(j + 2));
  };
  const auto tree = [&](std::size_t j) NF_INLINE_ATTR {
    if (j >= blocks) return hn::Zero(d128);
    if constexpr (sizeof(I) == 4) return ReduceBlocks(di, four(j));
    return ReduceBlocks(di, MergeMaxima<std::int64_t>(di, four(j), four(j + 4)));
  };
  auto most = hn::Zero(d);
  for (std::size_t j = 0; j < blocks; j += hn::Lanes(d)) {
    const auto largest = JoinGroups(d, j, tree);
    hn::StoreU(largest, d, reinterpret_cast<I*>(amaxes) + j);
    most = hn::Max(most, largest);
  }
  return LargestLane(d, most);
}

template <class T>
bool BlockAmax(const std::byte* items, std::size_t blocks, std::byte* amaxes) noexcept {
  NF_DCHECK(blocks > 0 && blocks <= cpu::kMicroBlocks);
  const std::uint32_t most = ComputeAmaxes<T, Inputs::kFinite>(items, blocks, amaxes);
  if (most < kInfinityBits<T>) return true;
  ComputeAmaxes<T, Inputs::kAll>(items, blocks, amaxes);
  return false;
}

/// Three ops for each vector of items: load, clear the sign, maximum.
template <class T, Inputs kInputs>
bool ColumnAmax(const std::byte* const* rows, std::size_t count, std::size_t cols,
                cpu::AmaxRows which, std::byte* amaxes) noexcept {
  NF_DCHECK(cols % hn::Lanes(D8()) == 0 && cols <= cpu::kMicroCols && IsLineAligned(amaxes));
  auto* maxima = reinterpret_cast<std::make_signed_t<BitsOf<T> >*>(amaxes);
  std::uint32_t most = 0;
  for (std::size_t r = 0; r < count; r += kRowsPerPass<T>) {
    // A copy, so that the addresses stay in registers. The last row stands in for missing ones.
    const std::byte* pass[kRowsPerPass<T>];
    for (std::size_t i = 0; i < kRowsPerPass<T>; ++i) pass[i] = rows[std::min(r + i, count - 1)];
    const bool first = r == 0 && which == cpu::AmaxRows::kOfThisCall;
    most =
        std::max(most, ColumnMaximaOfPass<T, kInputs>(pass, kRowsPerPass<T>, cols, first, maxima));
  }
  return most < kInfinityBits<T>;
}

using DI = hn::RebindToSigned<DF>;

/// Does EncodeE8M0Up for lanes that are not NaN. 6 ops. Adding the largest mantissa carries into
/// the exponent unless the mantissa is zero; patterns from 1 to that of 2^-127 belong to code 0.
HWY_INLINE hn::Vec<DI> EncodeE8M0Lanes(hn::Vec<DF> x) {
  const DI di;
  const auto bits = hn::BitCast(di, x);
  const auto carried = hn::ShiftRight<23>(hn::Add(bits, hn::Set(di, 0x7FFFFF)));
  const auto is_tiny =
      hn::And(hn::Gt(bits, hn::Zero(di)),
              hn::Gt(hn::Set(di, static_cast<std::int32_t>(E8M0::kSmallestPowerBits + 1)), bits));
  const auto code = hn::Add(carried, hn::VecFromMask(di, is_tiny));  // a mask is -1
  return hn::Min(code, hn::Set(di, static_cast<std::int32_t>(E8M0::kMaxCode)));
}

/// Computes from an E8M0 code what PowerOfTwoScale computes from the scale 2^(127 - code), whose
/// exponent field is 254 - code. Each function: 2 to 5 ops.
template <FloatFormat F, class T>
struct MxConstants {
  using Rule = PowerOfTwoScale<F, T>;
  static constexpr auto kSmallest = static_cast<std::int32_t>(Rule::kSmallest);
  static constexpr auto kLargest = static_cast<std::int32_t>(Rule::kLargest);
  static constexpr auto kBias = static_cast<std::int32_t>(F::kBias);

  static HWY_INLINE hn::Vec<DI> Field(hn::Vec<DI> code) {
    return hn::Sub(hn::Set(DI(), static_cast<std::int32_t>(E8M0::kMaxCode)), code);
  }
  /// Lanes whose scale needs the encoder for all inputs, unless the block is all zeros.
  static HWY_INLINE hn::Mask<DI> IsOutside(hn::Vec<DI> field, hn::Vec<DI> amax) {
    const DI di;
    const auto is_large = hn::And(hn::Gt(field, hn::Set(di, kLargest)), hn::Gt(amax, hn::Zero(di)));
    return hn::Or(hn::Gt(hn::Set(di, kSmallest), field), is_large);
  }
  /// DecodeE8M0Reciprocal: field 0 stands for 2^-127, whose pattern is a mantissa.
  static HWY_INLINE hn::Vec<DF> Scale(hn::Vec<DI> field) {
    const DI di;
    const auto subnormal = hn::Set(di, static_cast<std::int32_t>(E8M0::kSmallestPowerBits));
    const auto is_subnormal = hn::Eq(field, hn::Zero(di));
    return hn::BitCast(DF(), hn::IfThenElse(is_subnormal, subnormal, hn::ShiftLeft<23>(field)));
  }
  /// The pattern of F's smallest normal number over the scale, as an item of T; for EncodeByTable
  /// kStepsBelow less. float16 is compared after it was widened.
  static HWY_INLINE hn::Vec<DI> Floor(hn::Vec<DI> field) {
    const DI di;
    const auto exponent = hn::Sub(hn::Set(di, 255 - kBias), hn::Min(field, hn::Set(di, kLargest)));
    if constexpr (!std::is_same_v<T, BFloat16>) return hn::ShiftLeft<23>(exponent);
    const auto floor = hn::ShiftLeft<7>(exponent);
    if constexpr (!kByTable<F, T>) return floor;
    return hn::Sub(floor, hn::Set(di, static_cast<std::int32_t>(kStepsBelow<F>)));
  }
  /// EncodeRule::Multiplier(exponent of the scale): only the low bits of an offset depend on it.
  static HWY_INLINE hn::Vec<DF> Multiplier(hn::Vec<DI> field) {
    const DI di;
    constexpr auto kField = static_cast<std::int32_t>(EncodeRule<F>::kField);
    constexpr auto kMask = static_cast<std::int32_t>((2 * kSignCode<F> - 1) >> F::kMantissaBits);
    const auto power = hn::Min(field, hn::Set(di, kLargest));
    const auto offset =
        hn::And(hn::Add(power, hn::Set(di, kBias - 128 - kField)), hn::Set(di, kMask));
    return hn::BitCast(DF(),
                       hn::Add(hn::ShiftLeft<F::kMantissaBits>(offset), hn::Set(di, kField << 23)));
  }
};

/// Returns the values of Lanes(DF()) amax patterns from the i-th on.
template <class T>
HWY_INLINE hn::Vec<DF> AmaxValues(const std::byte* amaxes, std::size_t i) {
  if constexpr (kItemSize<T> == 4) {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(amaxes) + i);
  } else {
    const hn::RebindToUnsigned<DF> d32;
    const hn::Rebind<std::uint16_t, DF> d16;
    const auto patterns = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(amaxes) + i);
    return WidenMagnitudes<T, Inputs::kAll>(d32, hn::PromoteTo(d32, patterns));
  }
}

/// Computes the codes of Lanes(DF()) scales, stores them, and returns the fields of the scales.
/// Updates `outside`.
template <FloatFormat F, class T>
HWY_INLINE hn::Vec<DI> ComputeFields(const std::byte* amaxes, std::size_t i, std::uint8_t* codes,
                                     hn::Vec<DI>& outside) {
  constexpr float kReciprocalOfMax = 1.0f / kMaxValue<F>;  // MxRule multiplies, too
  const auto amax = AmaxValues<T>(amaxes, i);
  const auto code = EncodeE8M0Lanes(hn::Mul(amax, hn::Set(DF(), kReciprocalOfMax)));
  const hn::Rebind<std::uint8_t, DF> d8;
  hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
  const auto field = MxConstants<F, T>::Field(code);
  const auto is_outside = MxConstants<F, T>::IsOutside(field, hn::BitCast(DI(), amax));
  outside = hn::Or(outside, hn::VecFromMask(DI(), is_outside));
  return field;
}

/// One block's scale serves whole vectors: stores `floor` and `multiplier` in the order of blocks,
/// bfloat16's floors twice in 32 bits. About 30 ops for Lanes(DF()) blocks.
template <FloatFormat F, class T>
bool BlockScales(const std::byte* amaxes, std::size_t blocks, const MicroScales& out) noexcept {
  NF_DCHECK(blocks <= cpu::kMicroCols && IsLineAligned(out.scale) && IsLineAligned(out.floor));
  using C = MxConstants<F, T>;
  const hn::RebindToUnsigned<DF> d32;
  const MicroScales to = out;
  auto outside = hn::Zero(DI());
  for (std::size_t j = 0; j < blocks; j += hn::Lanes(DF())) {
    const auto field = ComputeFields<F, T>(amaxes, j, to.code, outside);
    hn::StoreU(C::Scale(field), DF(), to.scale + j);
    auto floor = hn::BitCast(d32, C::Floor(field));
    if constexpr (std::is_same_v<T, BFloat16>) floor = hn::Or(floor, hn::ShiftLeft<16>(floor));
    hn::StoreU(floor, d32, to.floor + j);
    if constexpr (!kByTable<F, T>) hn::StoreU(C::Multiplier(field), DF(), to.multiplier + j);
  }
  return hn::AllTrue(DI(), hn::Eq(outside, hn::Zero(DI())));
}

/// Stores two vectors in the order in which 16-bit items come apart: the even columns' lanes, then
/// the odd ones'. 2 ops. fp32: as they are.
template <class T>
HWY_INLINE void StoreLanes(hn::Vec<DF> low, hn::Vec<DF> high, float* to) {
  const DF df;
  if constexpr (kItemSize<T> == 4) {
    hn::StoreU(low, df, to);
    hn::StoreU(high, df, to + hn::Lanes(df));
  } else {
    hn::StoreU(hn::ConcatEven(df, high, low), df, to);
    hn::StoreU(hn::ConcatOdd(df, high, low), df, to + hn::Lanes(df));
  }
}

/// Each lane has a scale of its own: stores them in LaneScales' order, but bfloat16's floors, as 16
/// bits each, in the order of columns. About 70 ops for 2 * Lanes(DF()) columns.
template <FloatFormat F, class T>
bool ColumnScales(const std::byte* amaxes, std::size_t cols, const MicroScales& out) noexcept {
  NF_DCHECK(cols <= cpu::kMicroCols && cols % (2 * hn::Lanes(DF())) == 0);
  NF_DCHECK(IsLineAligned(amaxes) && IsLineAligned(out.scale) && IsLineAligned(out.floor));
  using C = MxConstants<F, T>;
  const MicroScales to = out;
  auto outside = hn::Zero(DI());
  for (std::size_t c = 0; c < cols; c += 2 * hn::Lanes(DF())) {
    const std::size_t second = c + hn::Lanes(DF());
    const auto low = ComputeFields<F, T>(amaxes, c, to.code, outside);
    const auto high = ComputeFields<F, T>(amaxes, second, to.code, outside);
    StoreLanes<T>(C::Scale(low), C::Scale(high), to.scale + c);
    if constexpr (std::is_same_v<T, BFloat16>) {
      const hn::Rebind<std::uint16_t, DF> d16;
      auto* floors = reinterpret_cast<std::uint16_t*>(to.floor);
      hn::StoreU(hn::DemoteTo(d16, C::Floor(low)), d16, floors + c);
      hn::StoreU(hn::DemoteTo(d16, C::Floor(high)), d16, floors + second);
    } else {
      StoreLanes<T>(hn::BitCast(DF(), C::Floor(low)), hn::BitCast(DF(), C::Floor(high)),
                    reinterpret_cast<float*>(to.floor + c));
    }
    if constexpr (!kByTable<F, T>)
      StoreLanes<T>(C::Multiplier(low), C::Multiplier(high), to.multiplier + c);
  }
  return hn::AllTrue(DI(), hn::Eq(outside, hn::Zero(DI())));
}

/// Index of the block that the i-th sub-vector of items lies in, where its lanes are `bytes` wide
/// and items are widened to fp32 two vectors at a time.
template <class T, class D>
constexpr std::size_t BlockOf(D /*df*/, std::size_t i, std::size_t bytes) {
  constexpr std::size_t kItems = hn::MaxLanes(D()) * sizeof(float) / kItemSize<T>;
  return i / (bytes / kItemSize<T>)*kItems / kMicroBlock;
}

/// Supplies EncodeRun with the scales of a vector's blocks, from memory.
template <class T, class D>
struct BlockScaleOf {
  const float* scale;  // of the vector's first block
  HWY_INLINE hn::Vec<D> operator()(std::size_t i) const {
    return hn::Set(D(), scale[BlockOf<T>(D(), i, sizeof(float))]);
  }
};
template <class T, class D>
struct BlockPowersOfTwo {
  const std::uint32_t* floor;  // of the vector's first block
  const float* multiplier;
  HWY_INLINE auto Floor(std::size_t i) const {
    const hn::RebindToUnsigned<D> d32;
    const hn::Repartition<FloorBits<T>, D> d;
    return hn::BitCast(d, hn::Set(d32, floor[BlockOf<T>(D(), i, sizeof(FloorBits<T>))]));
  }
  HWY_INLINE hn::Vec<D> Multiplier(std::size_t i) const {
    return hn::Set(D(), multiplier[BlockOf<T>(D(), i, sizeof(float))]);
  }
};

/// Encodes blocks, as many at a time as a vector holds. The last one alone fills half of a vector
/// of 512 bits.
template <FloatFormat F, class T, Inputs kInputs>
void EncodeBlocks(const MicroRun& run, std::size_t blocks, const MicroScales& scales) noexcept {
  const D8 d8;
  NF_DCHECK(blocks <= cpu::kMicroBlocks);
  NF_DCHECK(!run.nontemporal || reinterpret_cast<std::uintptr_t>(run.codes) % hn::Lanes(d8) == 0);
  const MicroRun in = run;
  const MicroScales of = scales;
  const VectorWriter codes{reinterpret_cast<std::uint8_t*>(in.codes), in.nontemporal};
  const auto encode = [&](auto d, std::size_t i) NF_INLINE_ATTR {
    using D = hn::Repartition<float, decltype(d)>;
    const std::size_t j = i / kMicroBlock;
    PrefetchBytes(in.next + i * kItemSize<T>, hn::Lanes(d) * kItemSize<T>);
    const std::byte* items = in.items + i * kItemSize<T>;
    if constexpr (kInputs == Inputs::kAll) {
      codes.Put(d, EncodeRun<F, T, kInputs>(d, items, BlockScaleOf<T, D>{of.scale + j}), i);
    } else {
      const BlockPowersOfTwo<T, D> constants{of.floor + j, of.multiplier + j};
      codes.Put(d, EncodeRun<F, T, kInputs>(d, items, constants), i);
    }
  };
  const std::size_t count = blocks * kMicroBlock;
  std::size_t i = 0;
  for (; i + hn::Lanes(d8) <= count; i += hn::Lanes(d8)) encode(d8, i);
  if constexpr (hn::MaxLanes(d8) > kMicroBlock) {
    if (i < count) encode(hn::CappedTag<std::uint8_t, kMicroBlock>(), i);
  }
}

/// Supplies EncodeRun with the scales of columns.
template <class T, Inputs kInputs>
HWY_INLINE auto ColumnScalesAt(const MicroScales& scales, std::size_t col) {
  if constexpr (kInputs == Inputs::kAll) {
    return LaneScales<DF>{scales.scale + col};
  } else {
    return LanePowersOfTwo<T, DF>{reinterpret_cast<const FloorBits<T>*>(scales.floor) + col,
                                  scales.multiplier + col};
  }
}

template <FloatFormat F, class T, Inputs kInputs>
void EncodeColumns(const MicroRun& run, std::size_t cols, const MicroScales& scales) noexcept {
  const D8 d8;
  NF_DCHECK(cols % hn::Lanes(d8) == 0 && cols <= cpu::kMicroCols);
  NF_DCHECK(!run.nontemporal || reinterpret_cast<std::uintptr_t>(run.codes) % hn::Lanes(d8) == 0);
  const MicroRun in = run;
  const MicroScales of = scales;
  const VectorWriter codes{reinterpret_cast<std::uint8_t*>(in.codes), in.nontemporal};
  for (std::size_t c = 0; c < cols; c += hn::Lanes(d8)) {
    PrefetchBytes(in.next + c * kItemSize<T>, hn::Lanes(d8) * kItemSize<T>);
    const std::byte* items = in.items + c * kItemSize<T>;
    codes.Put(d8, EncodeRun<F, T, kInputs>(d8, items, ColumnScalesAt<T, kInputs>(of, c)), c);
  }
}

HWY_INLINE hn::Vec<D8> UpperBytes(hn::Vec<D16> low, hn::Vec<D16> high) {
  return hn::ConcatOdd(D8(), hn::BitCast(D8(), high), hn::BitCast(D8(), low));
}

template <FloatFormat F, class T>
void EncodeBoth(const MicroRun& run, std::size_t cols, const MicroScales& of_blocks,
                const MicroScales& of_columns, std::byte* column_codes) noexcept {
  constexpr Inputs kInputs = Inputs::kFinite;
  const D8 d8;
  NF_DCHECK(cols % hn::Lanes(d8) == 0 && cols % kMicroBlock == 0 && cols <= cpu::kMicroCols);
  NF_DCHECK(!run.nontemporal || reinterpret_cast<std::uintptr_t>(run.codes) % hn::Lanes(d8) == 0);
  const MicroRun in = run;
  const MicroScales blocks = of_blocks, columns = of_columns;
  const VectorWriter row_codes{reinterpret_cast<std::uint8_t*>(in.codes), in.nontemporal};
  auto* to = reinterpret_cast<std::uint8_t*>(column_codes);
  for (std::size_t c = 0; c < cols; c += hn::Lanes(d8)) {
    const std::byte* items = in.items + c * kItemSize<T>;
    PrefetchBytes(in.next + c * kItemSize<T>, hn::Lanes(d8) * kItemSize<T>);
    const std::size_t j = c / kMicroBlock;
    const BlockPowersOfTwo<T, DF> by_row{blocks.floor + j, blocks.multiplier + j};
    const auto by_column = ColumnScalesAt<T, kInputs>(columns, c);
    if constexpr (kItemSize<T> == 2 && !kByTable<F, T>) {
      // Half a vector at a time, so that the items stay in registers for both directions.
      const D16 d16;
      const auto low = LoadItems(d16, items);
      const auto row_low = Encode16PowerOfTwo<F, T>(d16, low, by_row, 0);
      const auto column_low = Encode16PowerOfTwo<F, T>(d16, low, by_column, 0);
      const auto high = LoadItems(d16, items + hn::Lanes(d16) * 2);
      const auto row_high = Encode16PowerOfTwo<F, T>(d16, high, by_row, 1);
      const auto column_high = Encode16PowerOfTwo<F, T>(d16, high, by_column, 1);
      row_codes.Put(d8, UpperBytes(row_low, row_high), c);
      hn::StoreU(UpperBytes(column_low, column_high), d8, to + c);
    } else {
      const auto row = EncodeRun<F, T, kInputs>(d8, items, by_row);
      const auto column = EncodeRun<F, T, kInputs>(d8, items, by_column);
      row_codes.Put(d8, row, c);
      hn::StoreU(column, d8, to + c);
    }
  }
}

void CopyPastCaches(const std::byte* from, std::size_t count, std::byte* to) noexcept {
  CopyNontemporal(from, count, to);
}

template <FloatFormat F, class T>
constexpr cpu::MxKernels kMxKernels{
    .item_bytes = kItemSize<T>,
    .rows_per_pass = kRowsPerPass<T>,
    .block_amax = &BlockAmax<T>,
    .column_amax = &ColumnAmax<T, Inputs::kFinite>,
    .column_amax_of_all = &ColumnAmax<T, Inputs::kAll>,
    .block_scales = &BlockScales<F, T>,
    .column_scales = &ColumnScales<F, T>,
    .encode_blocks = &EncodeBlocks<F, T, Inputs::kFinite>,
    .encode_all_blocks = &EncodeBlocks<F, T, Inputs::kAll>,
    .encode_columns = &EncodeColumns<F, T, Inputs::kFinite>,
    .encode_all_columns = &EncodeColumns<F, T, Inputs::kAll>,
    .encode_both = &EncodeBoth<F, T>,
};

template <FloatFormat F, class... T>
constexpr ByType<cpu::MxKernels> MxByType(TypeList<T...>) {
  return {kMxKernels<F, T>...};
}

const cpu::MicroKernels* Table() {
  static constexpr cpu::MicroKernels kTable{
      .vector_bytes = hn::MaxLanes(D8()),
      .copy_nontemporal = &CopyPastCaches,
      .mx = {MxByType<E4M3>(FloatTypes{}), MxByType<E5M2>(FloatTypes{})},
  };
  return &kTable;
}

#endif

}  // namespace
}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowfloat {
HWY_EXPORT(Table);
namespace cpu {
const MicroKernels* MicroKernelsOf(std::size_t target) {
  return HWY_DISPATCH_TABLE(Table)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
