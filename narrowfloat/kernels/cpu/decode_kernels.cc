// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include "narrowfloat/kernels/cpu/decode_kernels.h"

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/decode_nibbles-inl.h"
#include "narrowfloat/kernels/cpu/transpose-inl.h"
#include "narrowfloat/kernels/dcheck.h"
#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/schemes/mxfp8.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

using cpu::DecodeRuns;
using cpu::kDecodeRun;
using cpu::kDecodeSide;

/// Calls decode(codes, writer) for each run, which reads `code_bytes` bytes of codes.
template <class Decode>
HWY_INLINE void ForEachRow(const DecodeRuns& all, std::size_t code_bytes, const Decode& decode) {
  const DecodeRuns runs = all;  // a copy, so that it stays in registers
  std::byte* items = runs.items;
  for (std::size_t r = 0; r < runs.rows; ++r, items += runs.item_stride) {
    if (runs.next != nullptr) PrefetchBytes(runs.next + r * runs.next_stride, code_bytes);
    const std::byte* codes = runs.codes + r * runs.code_stride;
    const VectorWriter writer = WriterTo(items, runs.nontemporal);
    // Two calls with constants in place of is_shifted (shifted stores are non-temporal), so that
    // the compiler removes its tests. With the tests, decoding took 1.2 times as long.
    if (writer.is_shifted) {
      decode(codes, VectorWriter{writer.to, true, true});
    } else {
      decode(codes, VectorWriter{writer.to, writer.nontemporal, false});
    }
  }
}

/// Decodes `count` codes of one byte each through fp32: any code, any scale. scales_at(i) returns
/// the scales of the Lanes(DF()) items from item i on. About 26 ops for two vectors of fp32 to
/// 16-bit items.
template <FloatFormat F, class T, class ScalesAt>
HWY_NOINLINE void DecodeAny(const std::byte* codes, std::size_t count, const ScalesAt& scales_at,
                            const VectorWriter& out) {
  const DF df;
  const ScalesAt scales = scales_at;  // a copy, so that it stays in registers
  ForEachStep<T, 2 * hn::MaxLanes(DF()), 1>(
      codes, count, out, [&](const std::uint8_t* in, std::size_t i, auto&& items) NF_INLINE_ATTR {
        hn::Vec<DF> low, high;
        DecodeCodes<F>(in, low, high);
        low = Scaled(low, scales(i));
        high = Scaled(high, scales(i + hn::Lanes(df)));
        if constexpr (kItemSize<T> == 4) {
          items.Put(df, low, 0);
          items.Put(df, high, hn::Lanes(df) * sizeof(float));
        } else {
          items.Put(D16(), RoundTo<T>(low, high), 0);
        }
      });
}

/// True if codes of F are decoded to T by NibbleTables.
template <FloatFormat F, class T>
inline constexpr bool kHasProducts = kBits<F> == 4 && kItemSize<T> == 2;

template <FloatFormat F, class T>
void DecodeBlocks(const DecodeRuns& runs, std::size_t count,
                  const cpu::DecodeBlocks& blocks) noexcept {
  NF_DCHECK(count > 0 && count <= kDecodeRun);
  NF_DCHECK(std::size_t{1} << blocks.shift >= cpu::ShortestDecodedBlock(kBits<F>));
  NF_DCHECK(count % CodesPerByte(kBits<F>) == 0);
  const cpu::DecodeBlocks of = blocks;
  const auto scales_at = [of](std::size_t i) NF_INLINE_ATTR {  // no block ends within a vector
    return hn::Set(DF(), of.scales[i >> of.shift]);
  };
  ForEachRow(runs, count / CodesPerByte(kBits<F>),
             [&](const std::byte* codes, const VectorWriter& out) NF_INLINE_ATTR {
               if constexpr (kHasTable<F, T>) {
                 if (DecodeBlocksByTables<F, T>(codes, count, of.scales, of.shift, out)) return;
               }
               if constexpr (kBits<F> == 8) return DecodeAny<F, T>(codes, count, scales_at, out);
               if constexpr (kBits<F> == 4) {
                 if constexpr (kHasProducts<F, T>) {
                   std::uint32_t pairs[NibbleTables<T>::kMostPairs];
                   if (NibbleTables<T>::Pairs(of.scales, ((count - 1) >> of.shift) + 1, pairs))
                     return NibbleTables<T>::Decode(codes, count, pairs, of.shift, out);
                 }
                 alignas(64) std::byte unpacked[kDecodeRun];
                 UnpackCodes(codes, count, unpacked);
                 DecodeAny<F, T>(unpacked, count, scales_at, out);
               }
             });
}

template <FloatFormat F, class T>
void DecodeColumns(const DecodeRuns& runs, std::size_t count,
                   const cpu::DecodeColumns& columns) noexcept {
  NF_DCHECK(count <= cpu::kDecodeCols);
  const cpu::DecodeColumns of = columns;
  ForEachRow(runs, count, [&](const std::byte* codes, const VectorWriter& out) NF_INLINE_ATTR {
    if constexpr (kHasTable<F, T>) {
      const auto power_at = [&](std::size_t i)
                                NF_INLINE_ATTR { return hn::LoadU(D16(), of.factors + i); };
      if (of.has_factors) {
        if (PowerTable<F, T>::Decode(codes, count, out, power_at)) return;
        const auto scales_of = [of](std::size_t i) NF_INLINE_ATTR {
          return PowerTable<F, T>::ScalesOf(of.factors + i);
        };
        return DecodeAny<F, T>(codes, count, scales_of, out);
      }
    }
    if constexpr (kHasProducts<F, T>) {
      if (of.has_factors) return NibbleTables<T>::DecodeColumns(codes, count, of.factors, out);
    }
    const auto scales_at = [of](std::size_t i)
                               NF_INLINE_ATTR { return hn::LoadU(DF(), of.scales + i); };
    DecodeAny<F, T>(codes, count, scales_at, out);
  });
}

/// Implements DecodeUniformFn: decodes by a table, or kDecodeRun items at a time through fp32 if
/// the table does not support one of them or the scale.
template <FloatFormat F, class T>
void DecodeUniform(const DecodeRuns& runs, std::size_t count, float scale) noexcept {
  CodeTable<F, T> table;
  bool has_table = false;
  if constexpr (kHasTable<F, T>) {
    has_table = HasUniformTable<F, T>(scale);
    if (has_table) table = UniformTable<F, T>(scale);
  }
  ForEachRow(runs, count, [&](const std::byte* codes, const VectorWriter& out) NF_INLINE_ATTR {
    for (std::size_t i = 0; i < count; i += kDecodeRun) {
      const std::size_t some = std::min(kDecodeRun, count - i);
      const VectorWriter items = out.From(i * kItemSize<T>);
      if constexpr (kHasTable<F, T>) {
        if (has_table && DecodeByUniformTable<F, T>(table, codes + i, some, items)) continue;
      }
      const auto same = [scale](std::size_t) NF_INLINE_ATTR { return hn::Set(DF(), scale); };
      DecodeAny<F, T>(codes + i, some, same, items);
    }
  });
}

template <ScaleType kType>
void DecodeScales(const std::byte* stored, std::size_t count, const cpu::ScaleFactors& factors,
                  float* scales) noexcept {
  if constexpr (kType == ScaleType::kFloat32) {
    CopyBytes(stored, count * sizeof(float), reinterpret_cast<std::byte*>(scales));
  } else if constexpr (kType == ScaleType::kE8M0) {
    for (std::size_t i = 0; i < count; ++i)
      scales[i] = DecodeE8M0(std::to_integer<std::uint32_t>(stored[i]));
  } else {
    const DF df;
    const auto amax = hn::Set(df, factors.amax), decode = hn::Set(df, factors.decode);
    ForEachStep<float, 2 * hn::MaxLanes(DF()), 1>(
        stored, count, VectorWriter{reinterpret_cast<std::uint8_t*>(scales)},
        [&](const std::uint8_t* in, std::size_t /*i*/, auto&& out) NF_INLINE_ATTR {
          hn::Vec<DF> low, high;
          DecodeCodes<E4M3>(in, low, high);
          out.Put(df, hn::Mul(hn::Mul(low, amax), decode), 0);
          out.Put(df, hn::Mul(hn::Mul(high, amax), decode), hn::Lanes(df) * sizeof(float));
        });
  }
}

void StageCodes(const std::byte* codes, std::size_t stride, std::size_t lines, std::size_t count,
                std::byte* staged, std::size_t staged_stride) noexcept {
  NF_DCHECK(count <= staged_stride);
  for (std::size_t i = 0; i < lines; ++i)
    CopyBytes(codes + i * stride, count, staged + i * staged_stride);
}

void TransposeCodes(const std::byte* staged, std::size_t stride, std::size_t rows,
                    std::byte* patch) noexcept {
  NF_DCHECK(rows <= kDecodeSide);
  const std::uint8_t* in = Bytes(staged);
  auto* out = reinterpret_cast<std::uint8_t*>(patch);
  for (std::size_t i = 0; i < kDecodeSide; i += hn::Lanes(D8())) {
    for (std::size_t r = 0; r < rows; r += kSquareSide)
      TransposeSquares(in + i * stride + r, stride, out + r * kDecodeSide + i, kDecodeSide);
  }
}

/// Implements SplitRowsFn, from the last row to the first: no row is overwritten before it is read.
void SplitRows(std::byte* patch, std::size_t count) noexcept {
  NF_DCHECK(count <= kDecodeSide / 2);
  const D8 d8;
  const auto nibble = hn::Set(d8, std::uint8_t{0xF});
  auto* rows = reinterpret_cast<std::uint8_t*>(patch);
  for (std::size_t r = count; r-- > 0;) {
    for (std::size_t i = 0; i < kDecodeSide; i += hn::Lanes(d8)) {
      const auto bytes = hn::LoadU(d8, rows + r * kDecodeSide + i);
      hn::StoreU(hn::And(bytes, nibble), d8, rows + 2 * r * kDecodeSide + i);
      hn::StoreU(hn::ShiftRight<4>(bytes), d8, rows + (2 * r + 1) * kDecodeSide + i);
    }
  }
}

template <FloatFormat F, class T>
constexpr cpu::FormatDecoders DecodersOf() {
  cpu::FormatDecoders decoders{&DecodeBlocks<F, T>, &DecodeColumns<F, T>};
  if constexpr (kBits<F> == 8) decoders.uniform = &DecodeUniform<F, T>;
  if constexpr (kHasProducts<F, T>) decoders.factors = &NibbleTables<T>::ColumnProducts;
  if constexpr (kHasTable<F, T>) {
    using Table = PowerTable<F, T>;
    decoders.factors = &Table::Powers;
    if constexpr (Table::kRegular) decoders.factors_of_e8m0 = &Table::PowersOfE8M0;
  }
  return decoders;
}

}  // namespace

const cpu::DecodeKernels* DecodeKernelsTable() {
  static constexpr cpu::DecodeKernels kTable{
      .scales = {&DecodeScales<ScaleType::kFloat32>, &DecodeScales<ScaleType::kE8M0>,
                 &DecodeScales<ScaleType::kE4M3>},
      .stage_codes = &StageCodes,
      .transpose_codes = &TransposeCodes,
      .split_rows = &SplitRows,
      .formats = ArrayOf(ElementFormats{},
                         []<class F>() {
                           return ArrayOf(FloatTypes{},
                                          []<class T>() { return DecodersOf<F, T>(); });
                         }),
  };
  return &kTable;
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
