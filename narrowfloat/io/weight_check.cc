// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/weight_check.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/formats.h"

namespace narrowfloat::io {
namespace {

enum class CodeKind : std::uint8_t { kZero, kOther, kLargest, kNan };

template <class Format>
CodeKind KindOf(std::uint32_t code) {
  const float value = std::abs(Decode<Format>(code));
  return std::isnan(value) || std::isinf(value) ? CodeKind::kNan
         : value == 0                           ? CodeKind::kZero
         : value == kMaxValue<Format>           ? CodeKind::kLargest
                                                : CodeKind::kOther;
}

std::array<CodeKind, 256> Kinds(FileDType codes) {
  std::array<CodeKind, 256> kinds{};
  for (std::uint32_t code = 0; code < kinds.size(); ++code) {
    kinds[code] = codes == FileDType::kF8E4M3   ? KindOf<E4M3>(code)
                  : codes == FileDType::kF8E5M2 ? KindOf<E5M2>(code)
                                                : KindOf<E2M1>(code & 0xF);
  }
  return kinds;
}

/// Counts of a block's codes by kind.
struct BlockCount {
  std::uint64_t codes = 0, nonzero = 0, largest = 0;
};

/// Counts the codes of every block, in the order of the scales, and those that are NaN.
std::vector<BlockCount> CountCodes(const ForeignWeight& form, std::span<const std::byte> codes,
                                   std::uint64_t& nan) {
  const std::array<CodeKind, 256> kinds = Kinds(form.codes);
  const std::size_t scale_cols = form.ScaleCols();
  std::vector<BlockCount> blocks(form.matrices * form.ScaleRows() * scale_cols);
  for (std::size_t index = 0; index < form.matrices * form.rows; ++index) {
    const std::size_t matrix = index / form.rows, row = index % form.rows;
    BlockCount* line =
        blocks.data() + (matrix * form.ScaleRows() + row / form.block.rows) * scale_cols;
    for (std::size_t col = 0; col < form.cols; ++col) {
      const std::size_t at = index * form.cols + col;
      auto code = std::to_integer<std::uint32_t>(codes[form.Packed() ? at / 2 : at]);
      if (form.Packed()) code = code >> (at % 2 * 4) & 0xF;
      BlockCount& block = line[col / form.block.cols];
      ++block.codes;
      block.nonzero += kinds[code] != CodeKind::kZero ? 1u : 0u;
      block.largest += kinds[code] == CodeKind::kLargest ? 1u : 0u;
      nan += kinds[code] == CodeKind::kNan ? 1u : 0u;
    }
  }
  return blocks;
}

void CountScale(float scale, bool any_nonzero, WeightCheck& check) {
  check.nan_scales += !std::isfinite(scale) ? 1u : 0u;
  check.negative_scales += scale < 0 ? 1u : 0u;
  check.zero_scales += scale == 0 && any_nonzero ? 1u : 0u;
}

}  // namespace

WeightCheck CheckWeight(const CanonicalWeight& weight) {
  WeightCheck check;
  const std::vector<BlockCount> blocks = CountCodes(weight.form, weight.codes, check.nan_codes);
  bool any_nonzero = false;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockCount& block = blocks[i];
    any_nonzero = any_nonzero || block.nonzero > 0;
    CountScale(ScaleValue(weight.form.scale, weight.scales, i), block.nonzero > 0, check);
    if (2 * block.largest >= block.codes && block.codes > 1) ++check.saturated_blocks;
  }
  if (weight.form.global != GlobalScale::kNone) CountScale(weight.global, any_nonzero, check);
  return check;
}

}  // namespace narrowfloat::io
