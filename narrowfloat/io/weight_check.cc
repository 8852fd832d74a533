// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/weight_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "narrowfloat/io/decode_weight.h"
#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/tensor/float_environment.h"

namespace narrowfloat::io {
namespace {

/// Counts of a block's codes by kind.
struct BlockCount {
  std::uint64_t codes = 0, nonzero = 0, largest = 0;
};

/// Three counts in one word, so that one addition updates all: codes that are not zero, codes of
/// the largest magnitude, NaN.
using Counts = std::uint64_t;
constexpr int kCountBits = 21;
constexpr std::size_t kMostCounted = std::size_t{1} << 20;  // codes of one word

std::uint64_t CountAt(Counts counts, int place) {
  return counts >> (place * kCountBits) & ((Counts{1} << kCountBits) - 1);
}

template <class Format>
Counts CountsOf(std::uint32_t code) {
  const float value = std::abs(Decode<Format>(code));
  const bool is_nan = std::isnan(value) || std::isinf(value);
  return Counts{is_nan || value != 0} | Counts{value == kMaxValue<Format>} << kCountBits |
         Counts{is_nan} << 2 * kCountBits;
}

/// Returns the counts of each byte, which has one code or two.
std::array<Counts, 256> CountsOfBytes(FileDType codes) {
  std::array<Counts, 256> counts{};
  for (std::uint32_t byte = 0; byte < counts.size(); ++byte) {
    counts[byte] = codes == FileDType::kF8E4M3 ? CountsOf<E4M3>(byte)
                   : codes == FileDType::kF8E5M2
                       ? CountsOf<E5M2>(byte)
                       : CountsOf<E2M1>(byte & 0xF) + CountsOf<E2M1>(byte >> 4);
  }
  return counts;
}

/// Returns the rows of all matrices; 0 for rows without columns, whose number no file bounds.
std::size_t RowsWithCodes(const ForeignWeight& form) {
  return form.cols == 0 ? 0 : form.matrices * form.rows;
}

/// Counts the codes of every block, in the order of the scales, and the codes that are NaN.
std::vector<BlockCount> CountCodes(const ForeignWeight& form, std::span<const std::byte> codes,
                                   std::uint64_t& nan) {
  const std::array<Counts, 256> table = CountsOfBytes(form.codes);
  const std::size_t scale_cols = form.ScaleCols(), per_byte = form.Packed() ? 2 : 1;
  const std::size_t step = std::min(form.block.cols, kMostCounted);
  std::vector<BlockCount> blocks(form.matrices * form.ScaleRows() * scale_cols);
  for (std::size_t index = 0; index < RowsWithCodes(form); ++index) {
    const std::size_t matrix = index / form.rows, row = index % form.rows;
    BlockCount* line =
        blocks.data() + (matrix * form.ScaleRows() + row / form.block.rows) * scale_cols;
    for (std::size_t col = 0; col < form.cols; col += step) {
      const std::size_t count = std::min(step, form.cols - col);
      Counts counts = 0;
      for (const std::byte byte :
           codes.subspan((index * form.cols + col) / per_byte, count / per_byte)) {
        counts += table[std::to_integer<std::size_t>(byte)];
      }
      BlockCount& block = line[col / form.block.cols];
      block.codes += count;
      block.nonzero += CountAt(counts, 0);
      block.largest += CountAt(counts, 1);
      nan += CountAt(counts, 2);
    }
  }
  return blocks;
}

void CountScale(float scale, bool any_nonzero, WeightCheck& check) {
  check.nan_scales += !std::isfinite(scale) ? 1u : 0u;
  check.negative_scales += scale < 0 ? 1u : 0u;
  check.zero_scales += scale == 0 && any_nonzero ? 1u : 0u;
}

/// Returns the factor of each block's codes. Scales that are not finite count as zero.
std::vector<float> FactorsOf(const CanonicalWeight& weight, std::size_t blocks) {
  const auto finite = [](float x) { return std::isfinite(x) ? x : 0.0f; };
  std::vector<float> factors(blocks);
  for (std::size_t i = 0; i < blocks; ++i) {
    factors[i] = finite(ScaleValue(weight.form.scale, weight.scales, i));
    if (weight.form.global == GlobalScale::kNone) continue;
    const float global = finite(weight.globals[i * weight.globals.size() / blocks]);
    factors[i] = CombineScales(factors[i], global, weight.form.global);
  }
  return factors;
}

/// Counts the infinite values of finite codes. `factors` are the blocks' factors.
std::uint64_t CountInfinite(const CanonicalWeight& weight, std::span<const float> factors) {
  const ForeignWeight& form = weight.form;
  const std::array<float, 256> values = ValuesOfCodes(form.codes);
  std::uint64_t count = 0;
  for (std::size_t index = 0; index < RowsWithCodes(form); ++index) {
    const std::size_t matrix = index / form.rows, row = index % form.rows;
    const std::size_t line = (matrix * form.ScaleRows() + row / form.block.rows) * form.ScaleCols();
    for (std::size_t col = 0; col < form.cols; ++col) {
      const std::size_t at = index * form.cols + col;
      std::size_t code = std::to_integer<std::size_t>(weight.codes[form.Packed() ? at / 2 : at]);
      if (form.Packed() && at % 2 == 1) code >>= 4;
      const float value = values[code];
      const bool infinite = std::isfinite(value) && value != 0 &&
                            !std::isfinite(value * factors[line + col / form.block.cols]);
      count += infinite ? 1u : 0u;
    }
  }
  return count;
}

/// Returns the largest finite magnitude of a code.
float LargestCode(FileDType codes) {
  float largest = 0;
  for (const float value : ValuesOfCodes(codes)) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

}  // namespace

WeightCheck CheckWeight(const CanonicalWeight& weight) {
  const FloatEnvironment environment;
  WeightCheck check;
  const std::vector<BlockCount> blocks = CountCodes(weight.form, weight.codes, check.nan_codes);
  std::vector<bool> any_nonzero(weight.globals.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockCount& block = blocks[i];
    if (block.nonzero > 0) any_nonzero[i * any_nonzero.size() / blocks.size()] = true;
    CountScale(ScaleValue(weight.form.scale, weight.scales, i), block.nonzero > 0, check);
    if (2 * block.largest >= block.codes && block.codes > 1) ++check.saturated_blocks;
  }
  const std::vector<float> factors = FactorsOf(weight, blocks.size());
  const float largest = LargestCode(weight.form.codes);
  const bool may_be_infinite =
      std::ranges::any_of(factors, [&](float factor) { return !std::isfinite(factor * largest); });
  if (may_be_infinite) check.infinite_values = CountInfinite(weight, factors);
  if (weight.form.global == GlobalScale::kNone) return check;
  for (std::size_t g = 0; g < weight.globals.size(); ++g)
    CountScale(weight.globals[g], any_nonzero[g], check);
  return check;
}

}  // namespace narrowfloat::io
