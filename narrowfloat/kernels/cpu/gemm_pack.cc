// SPDX-License-Identifier: Apache-2.0
// Packs panels of fp32 values: decodes codes and transposes them to [position][line].
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/decode-inl.h"
#include "narrowfloat/kernels/cpu/gemm-inl.h"
#include "narrowfloat/kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

/// Codes of kSquareSide positions, one byte each, [position][line]; lines without data are zeros.
struct CodeSquare {
  static constexpr std::size_t kLines = 64;
  static_assert(kLines % hn::MaxLanes(D8()) == 0 && kLines >= kFloatCols);
  alignas(64) std::uint8_t codes[kSquareSide][kLines];
};

/// Copies kSquareSide codes of each line, from position `pos` on, to `square`. Codes of four bits
/// become bytes; positions past the end are zeros. Requires: the codes of a line are adjacent.
template <FloatFormat F>
HWY_INLINE void GatherLines(const OperandCodes& codes, const LineRange& range, std::size_t pos,
                            CodeSquare& square) {
  alignas(64) std::uint8_t staged[CodeSquare::kLines][kSquareSide];
  const std::size_t lines = range.line_end - range.line_begin;
  const std::size_t places = std::min(kSquareSide, range.pos_end - pos);
  constexpr std::size_t kBytes = CodeBytes(kBits<F>, kSquareSide);
  const std::size_t bytes = CodeBytes(kBits<F>, places);
  for (std::size_t i = 0; i < lines; ++i) {
    const std::byte* from =
        codes.data + (range.line_begin + i) * codes.stride + CodeBytes(kBits<F>, pos);
    std::byte row[kBytes] = {};
    std::memcpy(row, from, bytes == kBytes ? kBytes : bytes);
    if constexpr (kBits<F> == 8) {
      std::memcpy(staged[i], row, kSquareSide);
    } else {
      UnpackCodes(row, kSquareSide, reinterpret_cast<std::byte*>(staged[i]));
    }
  }
  constexpr std::size_t kSquares = hn::MaxLanes(D8());
  const std::size_t used = (lines + kSquares - 1) / kSquares * kSquares;
  std::memset(staged[lines], 0, (used - lines) * kSquareSide);
  for (std::size_t i = 0; i < used; i += kSquares) {
    TransposeSquares(staged[i], kSquareSide, square.codes[0] + i, CodeSquare::kLines);
  }
}

/// Copies the codes of up to kSquareSide positions from `pos` on to `square`, and zeros up to
/// `full` lines. Requires: one code per byte; each position is a stored row.
HWY_INLINE void CopyPlaces(const OperandCodes& codes, const LineRange& range, std::size_t pos,
                           std::size_t full, CodeSquare& square) {
  const std::size_t lines = range.line_end - range.line_begin;
  const std::size_t places = std::min(kSquareSide, range.pos_end - pos);
  for (std::size_t k = 0; k < places; ++k) {
    const std::byte* from = codes.data + (pos + k) * codes.stride + range.line_begin;
    std::memcpy(square.codes[k], from, lines == full ? full : lines);
    std::memset(square.codes[k] + lines, 0, full - lines);
  }
}

/// Implements PackFn for a panel of kLines lines. Each position is one step of DecodeCodes, which
/// returns two vectors, and a panel of fewer lines drops the other lanes. If kLines is less than a
/// vector, the last position of each CodeSquare is copied from the stack, so that no store writes
/// past the panel.
template <FloatFormat F, std::size_t kLines>
void PackPanel(const PackArgs& args) noexcept {
  const DF df;
  constexpr std::size_t kLanes = hn::MaxLanes(DF());
  auto* out = reinterpret_cast<float*>(args.out);
  CodeSquare square = {};
  for (std::size_t pos = args.range.pos_begin; pos < args.range.pos_end; pos += kSquareSide) {
    const std::size_t places = std::min(kSquareSide, args.range.pos_end - pos);
    if (kBits<F> < 8 || args.codes.positions_are_adjacent) {
      GatherLines<F>(args.codes, args.range, pos, square);
    } else {
      CopyPlaces(args.codes, args.range, pos, kLines, square);
    }
    for (std::size_t k = 0; k < places; ++k, out += kLines) {
      hn::Vec<DF> low, high;
      DecodeCodes<F>(square.codes[k], low, high);
      if constexpr (kLines % kLanes == 0) {
        hn::StoreU(low, df, out);
        if constexpr (kLines > kLanes) hn::StoreU(high, df, out + kLanes);
      } else {
        // The next position overwrites the lanes past this position's lines.
        static_assert(kLines < kLanes);
        if (k + 1 < places) {
          hn::StoreU(low, df, out);
        } else {
          alignas(64) float last[kLanes];
          hn::Store(low, df, last);
          std::memcpy(out, last, kLines * sizeof(float));
        }
      }
    }
  }
}

}  // namespace

std::array<PanelPackers, ElementFormats::kSize> GemmFloatPackers() {
  return ArrayOf(ElementFormats{}, []<class F>() {
    return PanelPackers{&PackPanel<F, kFloatRows>, &PackPanel<F, kFloatCols>};
  });
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
