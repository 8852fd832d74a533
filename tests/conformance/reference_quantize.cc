// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/reference_quantize.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/conformance/reference_codec.h"

namespace narrowfloat::conformance {
namespace {

constexpr std::size_t kMxBlockLength = 32;
constexpr std::size_t kFp8BlockLength = 128;

std::size_t Up(std::size_t a, std::size_t multiple) {
  return (a + multiple - 1) / multiple * multiple;
}

/// Returns a product rounded once to binary32. Requires: the product is exact in binary64.
float RoundedProduct(double a, double b) {
  return static_cast<float>(a * b);
}

struct Matrix {
  const FloatTensor* in;
  std::size_t rows, cols;
  double operator()(std::size_t row, std::size_t col) const { return in->Value(row * cols + col); }
};

/// Returns the largest magnitude of a rectangle, clipped to the matrix. Ignores NaN.
double AmaxOf(const Matrix& x, std::size_t row, std::size_t col, std::size_t height,
              std::size_t width) {
  double amax = 0;
  for (std::size_t i = row; i < std::min(x.rows, row + height); ++i) {
    for (std::size_t j = col; j < std::min(x.cols, col + width); ++j) {
      const double magnitude = std::fabs(x(i, j));
      if (magnitude > amax) amax = magnitude;
    }
  }
  return amax;
}

void PutFloat(QuantizedBuffers& out, Role role, float value) {
  if (out.Has(role)) std::memcpy(out.Data(role), &value, sizeof value);
}

void QuantizeWhole(const Matrix& x, const ReferenceCodec& codec, QuantizedBuffers& out) {
  const QuantSpec& spec = out.view.spec;
  const double max = codec.Value(codec.format().largest);
  const auto measured = static_cast<float>(AmaxOf(x, 0, 0, x.rows, x.cols));
  const float amax = spec.amax.value_or(measured);
  const float scale = spec.scale
                          ? *spec.scale
                          : ReferenceScale(amax, max, spec.amax_epsilon, spec.ForcesPow2Scales());
  auto scale_inv = static_cast<float>(1.0 / static_cast<double>(scale));
  if (std::isnan(scale_inv)) scale_inv = std::bit_cast<float>(0x7FC00000u);
  PutFloat(out, Role::kScale, scale);
  PutFloat(out, Role::kAmaxRowwise, amax);
  PutFloat(out, Role::kRowwiseScaleInv, scale_inv);
  PutFloat(out, Role::kColumnwiseScaleInv, scale_inv);
  for (std::size_t i = 0; i < x.rows; ++i) {
    for (std::size_t j = 0; j < x.cols; ++j) {
      const float scaled = RoundedProduct(x(i, j), static_cast<double>(scale));
      const auto code = static_cast<std::byte>(codec.Encode(static_cast<double>(scaled)));
      if (spec.rowwise) out.Data(Role::kRowwiseData)[i * x.cols + j] = code;
      if (spec.columnwise) out.Data(Role::kColumnwiseData)[j * x.rows + i] = code;
    }
  }
}

/// Returns the index of the scale of (line, block). `rowwise`: compact scales are line-major, else
/// block-major.
std::size_t ScalePlace(bool rowwise, bool swizzled, std::size_t line, std::size_t block,
                       std::size_t lines, std::size_t blocks) {
  if (swizzled) {
    const std::size_t tiles = Up(blocks, 4) / 4;
    return (line / 128 * tiles + block / 4) * 512 + line % 32 * 16 + line % 128 / 32 * 4 +
           block % 4;
  }
  return rowwise ? line * Up(blocks, 4) + block : block * Up(lines, 128) + line;
}

void QuantizeMx(const Matrix& x, const ReferenceCodec& codec, bool square, bool rowwise,
                QuantizedBuffers& out) {
  const Role data = rowwise ? Role::kRowwiseData : Role::kColumnwiseData;
  const Role scales = rowwise ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv;
  const double max = codec.Value(codec.format().largest);
  const std::size_t lines = rowwise ? x.rows : x.cols;
  const std::size_t length = rowwise ? x.cols : x.rows;
  const std::size_t blocks = Up(length, kMxBlockLength) / kMxBlockLength;
  const bool packed =
      out.view.spec.scheme->element_bits == 4;  // then columnwise codes are transposed
  std::memset(out.Data(scales), 0, out.Bytes(scales));
  if (packed) std::memset(out.Data(data), 0, out.Bytes(data));
  for (std::size_t line = 0; line < lines; ++line) {
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t across = square ? line / kMxBlockLength * kMxBlockLength : line;
      const std::size_t height = square ? kMxBlockLength : 1;
      const std::size_t start = block * kMxBlockLength;
      const double amax = rowwise ? AmaxOf(x, across, start, height, kMxBlockLength)
                                  : AmaxOf(x, start, across, kMxBlockLength, height);
      const std::uint32_t scale_code = ReferenceMxCode(amax, max);
      const double multiplier = std::ldexp(1.0, 127 - static_cast<int>(scale_code));
      const std::size_t place =
          ScalePlace(rowwise || packed, out.view.spec.swizzled, line, block, lines, blocks);
      out.Data(scales)[place] = static_cast<std::byte>(scale_code);
      for (std::size_t k = start; k < std::min(length, start + kMxBlockLength); ++k) {
        const std::size_t row = rowwise ? line : k, col = rowwise ? k : line;
        const float scaled = RoundedProduct(x(row, col), multiplier);
        const std::uint32_t code = codec.Encode(static_cast<double>(scaled));
        if (packed) {
          out.Data(data)[(line * length + k) / 2] |= static_cast<std::byte>(code << k % 2 * 4);
        } else {
          out.Data(data)[row * x.cols + col] = static_cast<std::byte>(code);
        }
      }
    }
  }
}

/// Quantizes one direction by the rule of block-scaled FP8. Columnwise codes are transposed.
void QuantizeFp8Block(const Matrix& x, const ReferenceCodec& codec, bool square, bool rowwise,
                      QuantizedBuffers& out) {
  const QuantSpec& spec = out.view.spec;
  const Role scales = rowwise ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv;
  std::byte* codes = out.Data(rowwise ? Role::kRowwiseData : Role::kColumnwiseData);
  const std::size_t lines = rowwise ? x.rows : x.cols, length = rowwise ? x.cols : x.rows;
  const std::size_t blocks = Up(length, kFp8BlockLength) / kFp8BlockLength;
  const std::size_t height = square ? kFp8BlockLength : 1;
  const float overflow = x.in->dtype() == DType::kFloat16    ? 65504.0f
                         : x.in->dtype() == DType::kBFloat16 ? 0x1.FEp127f
                                                             : 0x1.FFFFFEp127f;
  std::memset(out.Data(scales), 0, out.Bytes(scales));
  for (std::size_t line = 0; line < lines; ++line) {
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t across = line / height * height, start = block * kFp8BlockLength;
      const double amax = rowwise ? AmaxOf(x, across, start, height, kFp8BlockLength)
                                  : AmaxOf(x, start, across, kFp8BlockLength, height);
      const float scale =
          ReferenceScale(static_cast<float>(amax), codec.Value(codec.format().largest),
                         spec.amax_epsilon, spec.ForcesPow2Scales(), overflow);
      const auto scale_inv = static_cast<float>(1.0 / static_cast<double>(scale));
      const std::size_t place =
          square ? line / height * Up(blocks, 4) + block : block * Up(lines, 4) + line;
      std::memcpy(out.Data(scales) + place * sizeof scale_inv, &scale_inv, sizeof scale_inv);
      for (std::size_t k = start; k < std::min(length, start + kFp8BlockLength); ++k) {
        const float scaled =
            RoundedProduct(rowwise ? x(line, k) : x(k, line), static_cast<double>(scale));
        codes[line * length + k] =
            static_cast<std::byte>(codec.Encode(static_cast<double>(scaled)));
      }
    }
  }
}

}  // namespace

float ReferenceScale(float amax, double max, float epsilon, bool power_of_two, float overflow) {
  if (amax < epsilon) amax = epsilon;
  // Does not cover a negative amax, which only a spec can have.
  if (std::isnan(amax) || std::isinf(amax) || amax == 0.0f) return 1.0f;
  // Rounding the binary64 quotient to fp32 equals one rounding: a quotient of two 24-bit numbers is
  // at least 2^-48 away from the middle of two fp32 numbers.
  const double quotient = max / static_cast<double>(amax);
  double scale = static_cast<double>(static_cast<float>(quotient));
  if (std::isinf(scale)) scale = static_cast<double>(overflow);
  int exponent = 0;
  if (power_of_two) {
    std::frexp(scale, &exponent);
    scale = std::ldexp(0.5, exponent);
  }
  return static_cast<float>(scale);
}

std::uint32_t ReferenceMxCode(double amax, double max) {
  const auto reciprocal = static_cast<float>(1.0 / max);
  const double wanted = static_cast<double>(RoundedProduct(amax, static_cast<double>(reciprocal)));
  for (std::uint32_t code = 0; code < 0xFE; ++code) {
    if (std::ldexp(1.0, static_cast<int>(code) - 127) >= wanted) return code;
  }
  return 0xFE;
}

std::uint32_t ReferenceDequantize(std::string_view element, std::uint32_t code, double scale_inv,
                                  DType dtype) {
  const double value = ReferenceCodecOf(element).Value(code);
  const float product = RoundedProduct(value, scale_inv);
  if (dtype != DType::kFloat32) {
    return ReferenceCodecOf(DTypeName(dtype))
        .Encode(static_cast<double>(product), PastLargest::kIsInfinite);
  }
  return std::isnan(product) ? 0x7FC00000u : std::bit_cast<std::uint32_t>(product);
}

void ReferenceQuantize(const FloatTensor& in, QuantizedBuffers& out) {
  const MatrixShape matrix = FlattenShape(in.shape());
  const Matrix x{&in, matrix.rows, matrix.cols};
  const SchemeInfo& scheme = *out.view.spec.scheme;
  const ReferenceCodec& codec = ReferenceCodecOf(scheme.element);
  if (scheme.block == kWholeTensor) return QuantizeWhole(x, codec, out);
  if (scheme.name.starts_with("nvfp4")) {
    if (out.view.spec.rowwise) ReferenceNvfp4(in, true, out);
    if (out.view.spec.columnwise) ReferenceNvfp4(in, false, out);
    return;
  }
  if (scheme.name.starts_with("fp8_block")) {
    const bool square = scheme.name.starts_with("fp8_block128x128");
    if (out.view.spec.rowwise) QuantizeFp8Block(x, codec, square, true, out);
    if (out.view.spec.columnwise) QuantizeFp8Block(x, codec, square, false, out);
    return;
  }
  const bool square = scheme.name.find("_2d") != std::string_view::npos;
  if (out.view.spec.rowwise) QuantizeMx(x, codec, square, true, out);
  if (out.view.spec.columnwise) QuantizeMx(x, codec, square, false, out);
}

}  // namespace narrowfloat::conformance
