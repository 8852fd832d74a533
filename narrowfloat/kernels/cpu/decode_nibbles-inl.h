// SPDX-License-Identifier: Apache-2.0
// Decodes packed E2M1 codes to 16-bit items by tables of the products of a scale. Compiled once per
// instruction set.
#pragma once

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/decode_tables-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {

/// Tag of the vectors of codes that a step of NibbleTables decodes, of at most 256 bits.
using DNibbles = hn::CappedTag<std::uint8_t, 32>;

/// Tables of the products of E2M1's 16 codes and the scale of 16 items, rounded to T: byte k of a
/// 128-bit block is the low or the high byte of code k's product. Normal products by 1/2, 1, 2 and
/// 4 differ by their exponents alone; so do products by 3/2, 3 and 6. The products by 4 and by 6
/// thus give all. Worked example: scale 3 as bfloat16 has 12 (0x4140) and 18 (0x4190). Code 0xB
/// (-1.5) is 18 less two exponents, 0x4090, with the sign 0xC090 (-4.5).
template <class T>
struct NibbleTables {
  static constexpr std::uint32_t kExponent = 1u << T::kMantissaBits;
  /// By code: the sign, at its place in the upper byte of an item.
  alignas(16) static constexpr std::uint8_t kSign[16] = {
      0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80};
  static constexpr std::size_t kMostPairs = cpu::kDecodeRun / 16 + hn::MaxLanes(DF());

  /// Calls store(j, products by 4, by 6) for each Lanes(DF()) of `count` scales. Returns true if
  /// each scale is +0, or is positive and has normal products alone. 10 ops and those of RoundTo.
  template <class Store>
  static HWY_INLINE bool Products(const float* scales, std::size_t count, const Store& store) {
    const DF df;
    const D32 d32;
    const hn::Half<D16> dh;
    constexpr float kLeast = narrowfloat::Decode<T>(2 * kExponent);  // its half is normal
    auto served = hn::Eq(hn::Zero(df), hn::Zero(df));
    for (std::size_t j = 0; j < count; j += hn::Lanes(df)) {
      const auto scale = hn::IfThenElseZero(hn::FirstN(df, count - j), hn::LoadU(df, scales + j));
      const auto four = hn::Mul(scale, hn::Set(df, 4.0f)), six = hn::Mul(scale, hn::Set(df, 6.0f));
      const auto is_zero = hn::RebindMask(df, hn::Eq(hn::BitCast(d32, scale), hn::Zero(d32)));
      const auto is_normal = hn::And(hn::Ge(scale, hn::Set(df, kLeast)),
                                     hn::Le(six, hn::Set(df, narrowfloat::Decode<T>(T::kMaxCode))));
      served = hn::And(served, hn::Or(is_zero, is_normal));
      const auto rounded = RoundTo<T>(four, six);
      store(j, hn::LowerHalf(dh, rounded), hn::UpperHalf(dh, rounded));
    }
    return hn::AllTrue(df, served);
  }

  /// Stores each scale's products as a pair, by 4 in the low half. Returns as Products does.
  static HWY_INLINE bool Pairs(const float* scales, std::size_t count, std::uint32_t* pairs) {
    const D32 d32;
    return Products(scales, count, [&](std::size_t j, auto fours, auto sixes) NF_INLINE_ATTR {
      const auto high = hn::ShiftLeft<16>(hn::PromoteTo(d32, sixes));
      hn::StoreU(hn::Or(hn::PromoteTo(d32, fours), high), d32, pairs + j);
    });
  }

  /// Implements FactorsFn: stores the products for DecodeColumns.
  static bool ColumnProducts(const float* scales, std::size_t count,
                             std::uint16_t* products) noexcept {
    NF_DCHECK(count <= cpu::kDecodeCols);
    const hn::Half<D16> dh;
    return Products(scales, count, [&](std::size_t j, auto fours, auto sixes) NF_INLINE_ATTR {
      hn::StoreU(fours, dh, products + j);
      hn::StoreU(sixes, dh, products + cpu::kDecodePlaces + j);
    });
  }

  /// Decodes unpacked codes under the products of their columns. Requires: ColumnProducts returned
  /// true. 18 ops for Lanes(D8()) items.
  static HWY_INLINE void DecodeColumns(const std::byte* codes, std::size_t count,
                                       const std::uint16_t* products, const VectorWriter& out) {
    const D8 d8;
    const D16 d16;
    // By code: the number of exponents by which the product exceeds the item. For code 0 this is
    // more than any product has, so that the subtraction saturates.
    constexpr std::uint8_t kAll = 0xFF >> (T::kMantissaBits - 7);
    alignas(16) static constexpr std::uint8_t kDown[16] = {kAll, 3, 2, 2, 1, 1, 0, 0,
                                                           kAll, 3, 2, 2, 1, 1, 0, 0};
    // By code: 0xFF if the item is computed from the product by 6, 0 if from that by 4.
    alignas(16) static constexpr std::uint8_t kIsSix[16] = {0, 0, 0, 0xFF, 0, 0xFF, 0, 0xFF,
                                                            0, 0, 0, 0xFF, 0, 0xFF, 0, 0xFF};
    const auto downs = hn::LoadDup128(d8, kDown), are_six = hn::LoadDup128(d8, kIsSix),
               signs = hn::LoadDup128(d8, kSign);
    ForEachStep<T, hn::MaxLanes(D8()), 1>(
        codes, count, out, [&](const std::uint8_t* in, std::size_t i, auto&& items) NF_INLINE_ATTR {
          const auto code = InterleavingOrder(hn::LoadU(d8, in));
          const auto down = hn::TableLookupBytes(downs, code);
          const auto is_six = hn::TableLookupBytes(are_six, code);
          const auto sign = hn::TableLookupBytes(signs, code), zero = hn::Zero(d8);
          const auto put = [&](auto exponents, auto select, auto sign_of,
                               std::size_t at) NF_INLINE_ATTR {
            const std::uint16_t* four = products + i + at;
            const auto product =
                hn::IfVecThenElse(hn::BitCast(d16, select),
                                  hn::LoadU(d16, four + cpu::kDecodePlaces), hn::LoadU(d16, four));
            const auto less = hn::ShiftLeft<T::kMantissaBits>(hn::BitCast(d16, exponents));
            items.Put(d16, hn::Or(hn::SaturatedSub(product, less), hn::BitCast(d16, sign_of)),
                      at * kItemSize<T>);
          };
          put(hn::InterleaveLower(d8, down, zero), hn::InterleaveLower(d8, is_six, is_six),
              hn::InterleaveLower(d8, zero, sign), 0);
          put(hn::InterleaveUpper(d8, down, zero), hn::InterleaveUpper(d8, is_six, is_six),
              hn::InterleaveUpper(d8, zero, sign), hn::Lanes(d16));
        });
  }

  /// Decodes packed codes. Requires: Pairs returned true. 19 ops for 32 items.
  static HWY_INLINE void Decode(const std::byte* packed, std::size_t count,
                                const std::uint32_t* pairs, int shift, const VectorWriter& out) {
    const DNibbles d8;
    const hn::Repartition<std::uint16_t, DNibbles> d16;
    const hn::Repartition<std::uint32_t, DNibbles> d32;
    const hn::Rebind<std::uint8_t, decltype(d16)> d_packed;
    // By 16-bit lane, which holds the products by 4 and by 6 in turn: the number to subtract for
    // the magnitudes 0.5, 0, 1, 1.5, 2, 3, 4 and 6. kLow and kHigh put them in the order of codes.
    constexpr auto e = static_cast<std::uint16_t>(kExponent);
    alignas(16) static constexpr std::uint16_t kDown[8] = {3 * e, 0xFFFF, 2 * e, 2 * e, e, e, 0, 0};
    alignas(16) static constexpr std::uint8_t kLow[16] = {2, 0, 4, 6, 8, 10, 12, 14,
                                                          2, 0, 4, 6, 8, 10, 12, 14};
    alignas(16) static constexpr std::uint8_t kHigh[16] = {3, 1, 5, 7, 9, 11, 13, 15,
                                                           3, 1, 5, 7, 9, 11, 13, 15};
    const auto down = hn::LoadDup128(d16, kDown);
    const auto low_bytes = hn::LoadDup128(d8, kLow), high_bytes = hn::LoadDup128(d8, kHigh);
    const auto signs = hn::LoadDup128(d8, kSign), nibble = hn::Set(d8, std::uint8_t{0xF});
    ForEachStep<T, hn::MaxLanes(d8), 2, hn::MaxLanes(d8)>(
        packed, count, out,
        [&](const std::uint8_t* in, std::size_t i, auto&& items) NF_INLINE_ATTR {
          // The pair of each 16 items fills a 128-bit block.
          const auto pair = [&](auto block, std::size_t lane) NF_INLINE_ATTR {
            return hn::Set(block, pairs[(i + 4 * lane) >> shift]);
          };
          const auto spread = hn::BitCast(d16, JoinParts<4>(d32, 0, pair));
          const auto products = hn::BitCast(d8, hn::SaturatedSub(spread, down));
          const auto low = hn::TableLookupBytes(products, low_bytes);
          const auto high = hn::Or(hn::TableLookupBytes(products, high_bytes), signs);
          // 0x00BA becomes 0x0BBA. The low nibbles of its two bytes are the codes A and B.
          const auto bytes = hn::PromoteTo(d16, hn::LoadU(d_packed, in));
          const auto codes =
              hn::And(hn::BitCast(d8, hn::Or(bytes, hn::ShiftLeft<4>(bytes))), nibble);
          const auto item_low = hn::TableLookupBytes(low, codes);
          const auto item_high = hn::TableLookupBytes(high, codes);
          const auto lower = hn::BitCast(d16, hn::InterleaveLower(d8, item_low, item_high));
          const auto upper = hn::BitCast(d16, hn::InterleaveUpper(d8, item_low, item_high));
          if constexpr (hn::MaxLanes(d8) == 16) {
            items.Put(d16, lower, 0);
            items.Put(d16, upper, 16);
          } else {
            items.Put(d16, hn::ConcatLowerLower(d16, upper, lower), 0);
            items.Put(d16, hn::ConcatUpperUpper(d16, upper, lower), 32);
          }
        });
  }
};

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
