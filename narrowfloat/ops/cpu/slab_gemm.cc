// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/slab_gemm.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/numerics/gelu.h"

namespace narrowfloat {
namespace {

// Positions along the lines that are decoded at a time: b's panel of them, 32 KiB, stays in the
// first-level cache while a's lines are multiplied.
constexpr std::size_t kChunk = 64;

/// Values, scales and sums of one tile.
struct Scratch {
  float a[kGemmTileRows][kChunk];
  float b[kChunk][kGemmTileCols];
  float dots[kGemmTileRows][kGemmTileCols];  // of the current slab so far
  // Of the slabs so far; fp32 numbers, except for kBinary64.
  double sums[kGemmTileRows][kGemmTileCols];
  float a_scales[kGemmTileRows], b_scales[kGemmTileCols];
};

/// Computes dots[c] += a[k] * b[k][c] for each k in order. The compiler vectorizes over c, which
/// may have any order. Four k at a time, so that dots is loaded and stored once for them.
void AddProducts(const float* __restrict a, const float (*__restrict b)[kGemmTileCols],
                 std::size_t count, std::size_t cols, float* __restrict dots) {
  std::size_t k = 0;
  for (; k + 4 <= count; k += 4) {
    const float a0 = a[k], a1 = a[k + 1], a2 = a[k + 2], a3 = a[k + 3];
    const float *b0 = b[k], *b1 = b[k + 1], *b2 = b[k + 2], *b3 = b[k + 3];
    for (std::size_t c = 0; c < cols; ++c) {
      dots[c] = (((dots[c] + a0 * b0[c]) + a1 * b1[c]) + a2 * b2[c]) + a3 * b3[c];
    }
  }
  for (; k < count; ++k) {
    for (std::size_t c = 0; c < cols; ++c) dots[c] += a[k] * b[k][c];
  }
}

template <SlabSum kSum>
double AddDot(double sum, float dot, float a, float b) {
  if constexpr (kSum == SlabSum::kBinary64) {
    // In binary64 the product of two scales, and its product with the dot product, are in range. In
    // fp32 they may overflow or underflow although the result does not.
    return sum + static_cast<double>(dot) * (static_cast<double>(a) * static_cast<double>(b));
  } else {
    const auto before = static_cast<float>(sum);
    if constexpr (kSum == SlabSum::kFusedLast) return std::fma(dot * a, b, before);
    if constexpr (kSum == SlabSum::kFusedFirst) return std::fma(dot * b, a, before);
    if constexpr (kSum == SlabSum::kFusedProduct) return std::fma(dot, a * b, before);
  }
}

template <SlabSum kSum>
void AddSlab(Scratch& scratch, std::size_t rows, std::size_t cols) {
  for (std::size_t r = 0; r < rows; ++r) {
    float* dots = scratch.dots[r];
    double* sums = scratch.sums[r];
    const float a = scratch.a_scales[r];
    for (std::size_t c = 0; c < cols; ++c) {
      sums[c] = AddDot<kSum>(sums[c], dots[c], a, scratch.b_scales[c]);
      dots[c] = 0.0f;
    }
  }
}

using AddSlabFn = void (*)(Scratch&, std::size_t rows, std::size_t cols);
constexpr AddSlabFn kAddSlab[] = {&AddSlab<SlabSum::kBinary64>, &AddSlab<SlabSum::kFusedLast>,
                                  &AddSlab<SlabSum::kFusedFirst>, &AddSlab<SlabSum::kFusedProduct>};

void SumTile(const GemmOperand& a, const GemmOperand& b, SlabSum sum, const Tile& tile,
             Scratch& scratch) {
  const std::size_t rows = tile.row_end - tile.row_begin, cols = tile.col_end - tile.col_begin;
  for (std::size_t begin = 0; begin < a.length; begin += kChunk) {
    const std::size_t end = std::min(begin + kChunk, a.length);
    a.Values({tile.row_begin, tile.row_end, begin, end}, {kChunk, 1}, scratch.a[0]);
    b.Values({tile.col_begin, tile.col_end, begin, end}, {1, kGemmTileCols}, scratch.b[0]);
    for (std::size_t k = begin; k < end;) {
      const std::size_t slab = k / a.slab, slab_end = std::min((slab + 1) * a.slab, a.length);
      const std::size_t next = std::min(slab_end, end);
      for (std::size_t r = 0; r < rows; ++r) {
        AddProducts(scratch.a[r] + (k - begin), scratch.b + (k - begin), next - k, cols,
                    scratch.dots[r]);
      }
      if (next == slab_end) {
        a.Scales(tile.row_begin, tile.row_end, slab, scratch.a_scales);
        b.Scales(tile.col_begin, tile.col_end, slab, scratch.b_scales);
        kAddSlab[static_cast<std::size_t>(sum)](scratch, rows, cols);
      }
      k = next;
    }
  }
}

template <class T>
float RoundTo(float value) {
  if constexpr (kItemSize<T> == 4) {
    return value;
  } else {
    return Decode<T>(Encode<T, Overflow::kInfinity>(value));
  }
}

template <class T>
float Add(float sum, float term, TermRounding rounding) {
  return (rounding == TermRounding::kBeforeTerm ? RoundTo<T>(sum) : sum) + term;
}

/// Returns `step` of a sum at (row, col) of the result.
template <class T>
float Apply(const SumStep& step, float sum, std::size_t row, std::size_t col) {
  if (step.function == SumFunction::kNone) return sum;
  if (step.function == SumFunction::kTimesGeluGradient) {
    return TimesGeluGradient(sum, LoadItem<T>(step.points.Row(row), col));
  }
  if (step.points.data != nullptr) StoreItem<T>(step.points.Row(row), col, sum);
  return Gelu(sum);
}

template <class T>
void StoreTile(const Scratch& scratch, const GemmRule& rule, const Tile& tile,
               const GemmResult& result) {
  for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
    std::byte* out = result.rows.Row(row);
    for (std::size_t col = tile.col_begin; col < tile.col_end; ++col) {
      auto sum = static_cast<float>(scratch.sums[row - tile.row_begin][col - tile.col_begin]);
      if (!result.bias.empty()) sum = Add<T>(sum, result.bias[col], rule.bias);
      sum = Apply<T>(result.step, sum, row, col);
      if (result.accumulates) sum = Add<T>(sum, LoadItem<T>(out, col), rule.accumulate);
      StoreItem<T>(out, col, sum);
    }
  }
}

/// Stores an empty sum: 0, or the accumulated value. It is exact, so only the bias is rounded.
template <class T>
void StoreEmptySum(const Tile& tile, const GemmResult& result) {
  const bool has_step = result.step.function != SumFunction::kNone;
  if (result.accumulates && result.bias.empty() && !has_step) return;
  for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
    std::byte* out = result.rows.Row(row);
    for (std::size_t col = tile.col_begin; col < tile.col_end; ++col) {
      const float before = result.accumulates ? LoadItem<T>(out, col) : 0.0f;
      float sum = result.bias.empty() ? 0.0f : result.bias[col];
      if (has_step) sum = Apply<T>(result.step, sum, row, col);
      const bool is_nothing = result.bias.empty() && !has_step;
      StoreItem<T>(out, col, is_nothing ? before : before + sum);
    }
  }
}

}  // namespace

GemmRule GemmRuleOf(const SchemeInfo& a, const SchemeInfo& b, DType out,
                    std::optional<DType> bias) {
  const bool has_blocks = a.block != kWholeTensor;
  if (has_blocks && a.layout.scale_type == ScaleType::kFloat32) {
    const bool a_is_tiles = a.block.rows > 1, b_is_tiles = b.block.rows > 1;
    const SlabSum sum = !a_is_tiles   ? SlabSum::kFusedLast
                        : !b_is_tiles ? SlabSum::kFusedFirst
                                      : SlabSum::kFusedProduct;
    return {.sum = sum, .bias = TermRounding::kAfterTerm};
  }
  const bool packed = a.element_bits < 8;
  if (packed) return {.bias = TermRounding::kAfterTerm, .accumulate = TermRounding::kAfterTerm};
  const bool bias_is_fused = bias && *bias != DType::kFloat32 && out != DType::kFloat32;
  return {.bias = bias_is_fused ? TermRounding::kAfterTerm : TermRounding::kBeforeTerm};
}

void MultiplyTile(const GemmOperand& a, const GemmOperand& b, const GemmRule& rule,
                  const Tile& tile, const GemmResult& result) {
  if (a.length == 0)
    return ForType(result.dtype, []<class T>() { return &StoreEmptySum<T>; })(tile, result);
  const auto scratch = std::make_unique<Scratch>();
  SumTile(a, b, rule.sum, tile, *scratch);
  ForType(result.dtype, []<class T>() { return &StoreTile<T>; })(*scratch, rule, tile, result);
}

}  // namespace narrowfloat
