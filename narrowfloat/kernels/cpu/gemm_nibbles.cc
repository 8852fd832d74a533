// SPDX-License-Identifier: Apache-2.0
// Multiplies E2M1 codes in integers. Twice a value is an integer of at most 12, so the dot product
// of a slab of 16 is an integer of at most 16 * 144, in any order. fp32 also holds every partial
// sum exactly, so the fp32 rule gives the same bits.
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

using Bytes16 = hn::FixedTag<std::uint8_t, 16>;

constexpr std::size_t kSlab = 16;  // positions under one scale
constexpr std::size_t kQuads =
    4;  // groups of 4 positions, which one 32-bit lane multiplies and adds
constexpr std::size_t kCols = hn::MaxLanes(DI());
constexpr std::size_t kRows = HWY_TARGET <= HWY_AVX3 ? 8 : 4;
constexpr int kOffset = 12;  // makes twice a value of `a` unsigned: instructions multiply u8 * s8

// A slab of panel a: [line][16] of 2 * value + kOffset.
// A slab of panel b: [quad][line][4] of 2 * value, then [line] of -kOffset * (sum of the line).
constexpr std::size_t kASlabBytes = kRows * kSlab;
constexpr std::size_t kBSlabBytes = kCols * (kSlab + sizeof(std::int32_t));

/// Adds the products of a slab to `sum`: `a` is a line of panel a, b0 to b3 the quads of a slab of
/// panel b. VNNI: 4 ops; else 12: 4 products of pairs, 3 additions in 16 bits (at most 8 * 24 *
/// 12), 3 shifts to widen and 2 additions.
HWY_INLINE hn::Vec<DI> DotSlab(const std::byte* a, hn::Vec<DI> b0, hn::Vec<DI> b1, hn::Vec<DI> b2,
                               hn::Vec<DI> b3, hn::Vec<DI> sum) {
  const DI di;
  const auto quad = [&](std::size_t q) NF_INLINE_ATTR {
    std::int32_t four;
    std::memcpy(&four, a + q * sizeof four, sizeof four);
    return hn::Set(di, four);
  };
#if HWY_TARGET == HWY_AVX3_DL
  const auto add = [&](std::size_t q, hn::Vec<DI> of_b) NF_INLINE_ATTR {
    // Highway's AVX3_DL requires a processor with VNNI, but does not enable VNNI in the compiler,
    // which therefore refuses the intrinsic.
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(quad(q).raw), "v"(of_b.raw));
  };
  add(0, b0);
  add(1, b1);
  add(2, b2);
  add(3, b3);
  return sum;
#else
  const hn::Repartition<std::int16_t, DI> d16;
  const auto pairs = [&](std::size_t q, hn::Vec<DI> of_b) NF_INLINE_ATTR {
    return hn::Vec<decltype(d16)>{NF_INSTRUCTION(maddubs_epi16)(quad(q).raw, of_b.raw)};
  };
  const auto slab =
      hn::Add(hn::Add(pairs(0, b0), pairs(1, b1)), hn::Add(pairs(2, b2), pairs(3, b3)));
  const auto even = hn::ShiftRight<16>(hn::ShiftLeft<16>(hn::BitCast(di, slab)));
  return hn::Add(sum, hn::Add(even, hn::ShiftRight<16>(hn::BitCast(di, slab))));
#endif
}

/// Calls visit(row, low, high) for each row of a micro-tile from `row` on, with the two vectors of
/// its sums.
template <class Visit, class V, class... Rest>
HWY_INLINE void ForEachRow(const Visit& visit, std::size_t row, V& low, V& high, Rest&... rest) {
  visit(row, low, high);
  if constexpr (sizeof...(rest) > 0) ForEachRow(visit, row + 1, rest...);
}

/// Computes sums[r][c] += dot * (scale of r * scale of c) in binary64 for each slab in order; the
/// sums are kHalves vectors, two for each row. The ops of DotSlab, 2 conversions and 6 double ops
/// per row and slab.
template <std::size_t... kHalves>
HWY_NOINLINE void AddSlabs(std::index_sequence<kHalves...> /*tile*/, const MicroTileArgs& args) {
  const DI di;
  const DD dd;
  const hn::Half<DI> half;
  const std::byte *a = args.a, *b = args.b;
  const double *a_scales = args.a_scales, *b_scales = args.b_scales;
  auto* kept = static_cast<double*>(args.sums);
  const std::size_t lanes = hn::Lanes(dd);
  [&](auto... sums) NF_INLINE_ATTR {
    for (std::size_t pos = 0; pos < args.length; pos += kSlab) {
      const auto* values = reinterpret_cast<const std::int32_t*>(b);
      const auto quad = [&](std::size_t q)
                            NF_INLINE_ATTR { return hn::LoadU(di, values + q * kCols); };
      const auto b0 = quad(0), b1 = quad(1), b2 = quad(2), b3 = quad(3), start = quad(kQuads);
      const auto quarter = hn::Set(dd, 0.25);  // both sides are doubled
      const auto low_scales = hn::Mul(hn::LoadU(dd, b_scales), quarter);
      const auto high_scales = hn::Mul(hn::LoadU(dd, b_scales + lanes), quarter);
      const auto add = [&](std::size_t r, hn::Vec<DD>& low, hn::Vec<DD>& high) NF_INLINE_ATTR {
        const auto dots = DotSlab(a + r * kSlab, b0, b1, b2, b3, start);
        const auto row = hn::Set(dd, a_scales[r]);
        const auto low_dots = hn::PromoteTo(dd, hn::LowerHalf(half, dots));
        const auto high_dots = hn::PromoteTo(dd, hn::UpperHalf(half, dots));
        low = hn::Add(low, hn::Mul(low_dots, hn::Mul(row, low_scales)));
        high = hn::Add(high, hn::Mul(high_dots, hn::Mul(row, high_scales)));
      };
      ForEachRow(add, 0, sums...);
      a += kASlabBytes;
      b += kBSlabBytes;
      a_scales += kRows;
      b_scales += kCols;
    }
    (hn::StoreU(sums, dd, kept + kHalves * lanes), ...);
  }(hn::LoadU(dd, kept + kHalves * lanes)...);
}

template <std::size_t kUsed>
using HalvesOf = std::make_index_sequence<2 * kUsed>;

void RunRows(const MicroTileArgs& args) noexcept {
  if (args.rows == 1) return AddSlabs(HalvesOf<1>(), args);
  if (args.rows <= kRows / 2) return AddSlabs(HalvesOf<kRows / 2>(), args);
  AddSlabs(HalvesOf<kRows>(), args);
}

constexpr auto kDoubled = [] {
  std::array<std::uint8_t, 16> doubled{};
  for (std::uint32_t code = 0; code < 16; ++code)
    doubled[code] = static_cast<std::uint8_t>(static_cast<int>(2.0f * Decode<E2M1>(code)));
  return doubled;
}();

/// Returns twice the values of a slab's codes, as signed bytes; zeros past the end of the line.
HWY_INLINE hn::Vec<Bytes16> LoadDoubled(const PackArgs& args, std::size_t line, std::size_t pos) {
  const Bytes16 d8;
  const std::size_t places = std::min(kSlab, args.range.pos_end - pos);
  const std::byte* from =
      args.codes.data + (args.range.line_begin + line) * args.codes.stride + pos / 2;
  alignas(16) std::uint8_t packed[16] = {};
  if (places == kSlab) {
    std::memcpy(packed, from, kSlab / 2);
  } else {
    std::memcpy(packed, from, places / 2);
  }
  const hn::Repartition<std::uint16_t, Bytes16> d16;
  const auto bytes = hn::Load(d8, packed);
  const auto nibble = hn::Set(d8, std::uint8_t{0xF});
  const auto second = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, bytes))), nibble);
  const auto codes = hn::InterleaveLower(d8, hn::And(bytes, nibble), second);
  return hn::TableLookupBytes(hn::LoadU(d8, kDoubled.data()), codes);
}

std::size_t LineCount(const PackArgs& args) {
  return args.range.line_end - args.range.line_begin;
}

void PackA(const PackArgs& args) noexcept {
  const Bytes16 d8;
  auto* out = reinterpret_cast<std::uint8_t*>(args.out);
  const std::size_t lines = LineCount(args);
  const auto offset = hn::Set(d8, static_cast<std::uint8_t>(kOffset));
  for (std::size_t pos = args.range.pos_begin; pos < args.range.pos_end; pos += kSlab) {
    for (std::size_t line = 0; line < lines; ++line) {
      hn::StoreU(hn::Add(LoadDoubled(args, line, pos), offset), d8, out + line * kSlab);
    }
    std::memset(out + lines * kSlab, 0, (kRows - lines) * kSlab);
    out += kASlabBytes;
  }
}

/// Returns -kOffset * (sum of the 16 signed bytes). SumsOf8 adds unsigned bytes: adds kOffset to
/// each byte before, and subtracts kSlab * kOffset after.
HWY_INLINE std::int32_t StartOf(hn::Vec<Bytes16> doubled) {
  const Bytes16 d8;
  const hn::Repartition<std::uint64_t, Bytes16> d64;
  alignas(16) std::uint64_t sums[2];
  const auto lifted = hn::Add(doubled, hn::Set(d8, static_cast<std::uint8_t>(kOffset)));
  hn::Store(hn::SumsOf8(lifted), d64, sums);
  return -kOffset * (static_cast<std::int32_t>(sums[0] + sums[1]) -
                     kOffset * static_cast<std::int32_t>(kSlab));
}

/// Writes the quads of a slab of four lines, a to d, of which a has index `first`. 12 ops.
HWY_INLINE void StoreQuads(hn::Vec<Bytes16> a, hn::Vec<Bytes16> b, hn::Vec<Bytes16> c,
                           hn::Vec<Bytes16> d, std::size_t first, std::byte* slab) {
  const hn::Repartition<std::uint32_t, Bytes16> d32;
  alignas(16) std::uint32_t quads[kQuads][4];
  hn::StoreInterleaved4(hn::BitCast(d32, a), hn::BitCast(d32, b), hn::BitCast(d32, c),
                        hn::BitCast(d32, d), d32, quads[0]);
  for (std::size_t q = 0; q < kQuads; ++q)
    std::memcpy(slab + (q * kCols + first) * 4, quads[q], sizeof quads[q]);
}

void PackB(const PackArgs& args) noexcept {
  const Bytes16 d8;
  std::byte* out = args.out;
  const std::size_t lines = LineCount(args);
  for (std::size_t pos = args.range.pos_begin; pos < args.range.pos_end; pos += kSlab) {
    auto* starts = reinterpret_cast<std::int32_t*>(out + kCols * kSlab);
    const auto line_at = [&](std::size_t i) NF_INLINE_ATTR {
      const auto line = i < lines ? LoadDoubled(args, i, pos) : hn::Zero(d8);
      starts[i] = StartOf(line);
      return line;
    };
    for (std::size_t i = 0; i < kCols; i += 4)
      StoreQuads(line_at(i), line_at(i + 1), line_at(i + 2), line_at(i + 3), i, out);
    out += kBSlabBytes;
  }
}

}  // namespace

GemmBody GemmNibblesBody() {
  GemmBody body{.rows = kRows,
                .cols = kCols,
                .unit = kSlab,
                .a_unit_bytes = kASlabBytes,
                .b_unit_bytes = kBSlabBytes,
                .add_slabs = {&RunRows}};
  body.pack[IndexIn<E2M1>(ElementFormats{})] = {&PackA, &PackB};
  return body;
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
