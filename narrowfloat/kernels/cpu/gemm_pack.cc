// SPDX-License-Identifier: Apache-2.0
// Panels of fp32 values: decodes codes and transposes them to [place][line].
#include <algorithm>
#include <array>
#include <cstring>

#include "narrowfloat/kernels/cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/gemm_pack.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/decode-inl.h"
#include "narrowfloat/kernels/cpu/gemm-inl.h"
#include "narrowfloat/kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

using Packers = std::array<PanelPackers, ElementFormats::kSize>;

#if HWY_TARGET == HWY_SCALAR

Packers FloatPackers() {
  return {};
}

#else

namespace hn = hwy::HWY_NAMESPACE;

/// Codes of kSide places, one byte each, [place][line]; lines that hold no data are zeros.
struct CodeSquare {
  static constexpr std::size_t kLines = 64;
  static_assert(kLines % hn::MaxLanes(D8Squares()) == 0 && kLines >= kFloatCols);
  alignas(64) std::uint8_t codes[kSide][kLines];
};

/// Copies kSide codes of each line, from place `along` on, to `square`. Requires: lines of adjacent
/// codes. Codes of four bits become bytes.
template <FloatFormat F>
HWY_INLINE void GatherLines(const OperandCodes& codes, const LineRange& range, std::size_t along,
                            CodeSquare& square) {
  alignas(64) std::uint8_t staged[CodeSquare::kLines][kSide];
  const std::size_t lines = range.line_end - range.line_begin;
  const std::size_t places = std::min(kSide, range.along_end - along);
  constexpr std::size_t kBytes = kSide * static_cast<std::size_t>(kBits<F>) / 8;
  const std::size_t bytes = places * static_cast<std::size_t>(kBits<F>) / 8;
  for (std::size_t i = 0; i < lines; ++i) {
    const std::byte* from = codes.data + (range.line_begin + i) * codes.stride +
                            along * static_cast<std::size_t>(kBits<F>) / 8;
    std::byte row[kBytes] = {};
    std::memcpy(row, from, bytes == kBytes ? kBytes : bytes);
    if constexpr (kBits<F> == 8) {
      std::memcpy(staged[i], row, kSide);
    } else {
      UnpackCodes(row, kSide, reinterpret_cast<std::byte*>(staged[i]));
    }
  }
  constexpr std::size_t kSquares = hn::MaxLanes(D8Squares());
  const std::size_t used = (lines + kSquares - 1) / kSquares * kSquares;
  std::memset(staged[lines], 0, (used - lines) * kSide);
  for (std::size_t i = 0; i < used; i += kSquares) {
    TransposeSquares(staged[i], kSide, square.codes[0] + i, CodeSquare::kLines);
  }
}

/// Copies the codes of up to kSide places, each of which is a stored row. Requires: a code a byte.
HWY_INLINE void CopyPlaces(const OperandCodes& codes, const LineRange& range, std::size_t along,
                           std::size_t full, CodeSquare& square) {
  const std::size_t lines = range.line_end - range.line_begin;
  const std::size_t places = std::min(kSide, range.along_end - along);
  for (std::size_t k = 0; k < places; ++k) {
    const std::byte* from = codes.data + (along + k) * codes.stride + range.line_begin;
    std::memcpy(square.codes[k], from, lines == full ? full : lines);
    std::memset(square.codes[k] + lines, 0, full - lines);
  }
}

/// Decodes a panel of kLines lines. Each place is one step of DecodeCodes, which yields two
/// vectors; a panel of fewer lines drops the rest, and the last place of a panel is stored item by
/// item where a whole vector would not fit.
template <FloatFormat F, std::size_t kLines>
void PackPanel(const PackArgs& args) noexcept {
  const DF df;
  constexpr std::size_t kLanes = hn::MaxLanes(DF());
  auto* out = reinterpret_cast<float*>(args.out);
  CodeSquare square = {};
  for (std::size_t along = args.range.along_begin; along < args.range.along_end; along += kSide) {
    const std::size_t places = std::min(kSide, args.range.along_end - along);
    if (kBits<F> < 8 || args.codes.along_is_adjacent) {
      GatherLines<F>(args.codes, args.range, along, square);
    } else {
      CopyPlaces(args.codes, args.range, along, kLines, square);
    }
    for (std::size_t k = 0; k < places; ++k, out += kLines) {
      hn::Vec<DF> low, high;
      DecodeCodes<F>(square.codes[k], low, high);
      if constexpr (kLines % kLanes == 0) {
        hn::StoreU(low, df, out);
        if constexpr (kLines > kLanes) hn::StoreU(high, df, out + kLanes);
      } else {
        // Later places overwrite what lies past this one's lines.
        static_assert(kLines < kLanes);
        if (along + k + 1 < args.range.along_end && k + 1 < places) {
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

template <FloatFormat... F>
constexpr Packers MakePackers(TypeList<F...>) {
  return {PanelPackers{&PackPanel<F, kFloatRows>, &PackPanel<F, kFloatCols>}...};
}
Packers FloatPackers() {
  return MakePackers(ElementFormats{});
}

#endif

}  // namespace
}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowfloat {
HWY_EXPORT(FloatPackers);
namespace cpu {
std::array<PanelPackers, ElementFormats::kSize> GemmFloatPackers(std::size_t target) {
  return HWY_DISPATCH_TABLE(FloatPackers)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
