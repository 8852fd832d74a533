// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/decode_weight.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/tensor/float_environment.h"

namespace narrowfloat::io {
namespace {

float ScaleAt(FileDType dtype, const std::byte* bytes, std::size_t i) {
  const auto read16 = [&] {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes + 2 * i, sizeof bits);
    return bits;
  };
  switch (dtype) {
    case FileDType::kF8E8M0:
    case FileDType::kU8:
      return DecodeE8M0(std::to_integer<std::uint32_t>(bytes[i]));
    case FileDType::kF8E4M3:
      return Decode<E4M3>(std::to_integer<std::uint32_t>(bytes[i]));
    case FileDType::kBF16:
      return Decode<BFloat16>(read16());
    case FileDType::kF16:
      return Decode<Float16>(read16());
    default: {
      float value = 0;
      std::memcpy(&value, bytes + 4 * i, sizeof value);
      return value;
    }
  }
}

/// Returns every block's scale in fp32.
std::vector<float> ScalesOf(const ForeignWeight& weight, const ForeignBytes& in, FileDType global) {
  std::vector<float> scales(weight.matrices * weight.ScaleRows() * weight.ScaleCols());
  const std::size_t per_global = scales.size() / weight.globals;
  for (std::size_t g = 0; g < weight.globals; ++g) {
    const float whole =
        weight.global == GlobalScale::kNone ? 1.0f : ScaleAt(global, in.global.data(), g);
    for (std::size_t i = g * per_global; i < (g + 1) * per_global; ++i) {
      scales[i] = CombineScales(ScaleAt(weight.scale, in.scale.data(), i), whole, weight.global);
    }
  }
  return scales;
}

/// Stores values in fp32 at `out`, rounded to a 16-bit format.
template <class Format>
void StoreRounded(std::span<const float> values, std::byte* out) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = static_cast<std::uint16_t>(Encode<Format, Overflow::kInfinity>(values[i]));
    std::memcpy(out + 2 * i, &bits, sizeof bits);
  }
}

void StoreValues(std::span<const float> values, DType dtype, std::byte* out) {
  switch (dtype) {
    case DType::kBFloat16:
      return StoreRounded<BFloat16>(values, out);
    case DType::kFloat16:
      return StoreRounded<Float16>(values, out);
    default:
      std::memcpy(out, values.data(), values.size_bytes());
  }
}

/// Decodes a weight patch by patch. The values of a patch have the order of the output.
class WeightDecoder {
 public:
  static constexpr std::size_t kRows = 64, kCols = 256;  // size of a patch

  WeightDecoder(const ForeignWeight& weight, const ForeignBytes& in, DType dtype, std::byte* out)
      : weight_(weight),
        in_(in),
        dtype_(dtype),
        out_(out),
        values_(ValuesOfCodes(weight.codes)),
        scales_(ScalesOf(weight, in, FileDType::kF32)) {}

  /// Decodes up to kRows rows of a matrix.
  void DecodeRows(std::size_t matrix, std::size_t begin, std::size_t end) const {
    std::array<float, kCols> values{};
    for (std::size_t col = 0; col < weight_.cols; col += kCols) {
      const std::size_t count = std::min(kCols, weight_.cols - col);
      if (weight_.transposed) {
        DecodeTransposed(matrix, {begin, end}, {col, col + count});
        continue;
      }
      for (std::size_t row = begin; row < end; ++row) {
        DecodeRun(matrix, row, col, {values.data(), count});
        Store({values.data(), count}, (matrix * weight_.rows + row) * weight_.cols + col);
      }
    }
  }

 private:
  struct Range {
    std::size_t begin, end;
  };

  void DecodeTransposed(std::size_t matrix, Range rows, Range cols) const {
    std::array<float, kRows * kCols> patch{};
    std::array<float, kRows> column{};
    const std::size_t row_count = rows.end - rows.begin, col_count = cols.end - cols.begin;
    for (std::size_t row = 0; row < row_count; ++row) {
      DecodeRun(matrix, rows.begin + row, cols.begin, {patch.data() + row * kCols, col_count});
    }
    for (std::size_t col = 0; col < col_count; ++col) {
      for (std::size_t row = 0; row < row_count; ++row) column[row] = patch[row * kCols + col];
      const std::size_t line = matrix * weight_.cols + cols.begin + col;
      Store({column.data(), row_count}, line * weight_.rows + rows.begin);
    }
  }

  /// Decodes adjacent values of a row. Requires: `col` is even.
  void DecodeRun(std::size_t matrix, std::size_t row, std::size_t col, std::span<float> out) const {
    const std::size_t item = (matrix * weight_.rows + row) * weight_.cols + col;
    const float* scales =
        scales_.data() +
        (matrix * weight_.ScaleRows() + row / weight_.block.rows) * weight_.ScaleCols();
    for (std::size_t at = 0; at < out.size();) {
      const std::size_t block = (col + at) / weight_.block.cols;
      const std::size_t end = std::min(out.size(), (block + 1) * weight_.block.cols - col);
      DecodeBlock(item + at, scales[block], out.subspan(at, end - at));
      at = end;
    }
  }

  void DecodeBlock(std::size_t item, float scale, std::span<float> out) const {
    const auto value = [&](std::byte code) {
      return values_[std::to_integer<std::size_t>(code)] * scale;
    };
    if (!weight_.Packed()) {
      const std::byte* codes = in_.codes.data() + item;
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = value(codes[i]);
      return;
    }
    const std::byte* codes = in_.codes.data() + item / 2;
    const std::size_t low = weight_.high_half_first ? 1 : 0;  // index of the low half's value
    for (std::size_t i = 0; i < out.size(); i += 2) {
      out[i + low] = value(codes[i / 2] & std::byte{0xF});
      out[i + 1 - low] = value(codes[i / 2] >> 4);
    }
  }

  void Store(std::span<const float> values, std::size_t item) const {
    StoreValues(values, dtype_, out_ + item * ItemSize(dtype_));
  }

  const ForeignWeight& weight_;
  ForeignBytes in_;
  DType dtype_;
  std::byte* out_;
  std::array<float, 256> values_;
  std::vector<float> scales_;
};

}  // namespace

float ScaleValue(FileDType dtype, std::span<const std::byte> bytes, std::size_t i) {
  return ScaleAt(dtype, bytes.data(), i);
}

std::array<float, 256> ValuesOfCodes(FileDType codes) {
  std::array<float, 256> values{};
  for (std::uint32_t code = 0; code < values.size(); ++code) {
    values[code] = codes == FileDType::kF8E4M3   ? Decode<E4M3>(code)
                   : codes == FileDType::kF8E5M2 ? Decode<E5M2>(code)
                                                 : Decode<E2M1>(code & 0xF);
  }
  return values;
}

void DecodeWeight(const ForeignWeight& weight, const ForeignBytes& in, DType dtype,
                  std::span<std::byte> out, int threads) {
  const FloatEnvironment environment;  // products of scales may be subnormal
  if (out.empty()) return;             // an empty tensor may have any number of rows
  if (weight.swizzled) {
    ForeignWeight by_row = weight;
    by_row.swizzled = false;
    const std::vector<std::byte> scale = ScalesByRow(weight, in.scale);
    return DecodeWeight(by_row, {in.codes, scale, in.global}, dtype, out, threads);
  }
  const WeightDecoder decoder(weight, in, dtype, out.data());
  const std::size_t tasks = CeilDiv(weight.rows, WeightDecoder::kRows);  // per matrix
  ParallelFor({.threads = threads}, weight.matrices * tasks, [&](std::size_t task) {
    const std::size_t begin = task % tasks * WeightDecoder::kRows;
    const std::size_t end = std::min(weight.rows, begin + WeightDecoder::kRows);
    decoder.DecodeRows(task / tasks, begin, end);
  });
}

}  // namespace narrowfloat::io
