// SPDX-License-Identifier: Apache-2.0
// NVFP4 by docs/numerics.md, one fp32 operation after another. Each is a binary64 operation whose
// result is rounded to fp32. This second rounding is harmless for sums, products and quotients of
// two fp32 numbers, because binary64 has more than twice the digits (Figueroa 1995).
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/conformance/reference_codec.h"
#include "tests/conformance/reference_quantize.h"

namespace narrowfloat::conformance {
namespace {

constexpr double kLargest = std::numeric_limits<float>::max();

double F32(double x) {
  return static_cast<double>(static_cast<float>(x));
}
/// Computes CUDA's fminf, which returns the number if the other argument is NaN.
double Fmin(double a, double b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : std::min(a, b);
}

/// The items of one direction as lines, transformed if the spec says so. Items past the end are 0.
struct Lines {
  std::size_t lines, length;
  std::vector<double> items;
  double At(std::size_t line, std::size_t i) const {
    return i < length && line < lines ? items[line * length + i] : 0.0;
  }
};

/// Rounds `x` once to the type.
double RoundToItem(double x, DType dtype) {
  if (dtype == DType::kFloat32) return F32(x);
  const ReferenceCodec& codec = ReferenceCodecOf(DTypeName(dtype));
  return codec.Value(codec.Encode(x, PastLargest::kIsInfinite));
}

/// Transforms in long double, whose sums are exact if the exponents of a group span at most 36
/// binades (24 bits of a significand, 4 bits for the sum of 16). Requires: at most 25 binades, so
/// that the sums are also exact in binary64, in which they are rounded to the type.
void Transform(Lines& operand, std::uint64_t sign_mask, DType dtype) {
  for (std::size_t start = 0; start < operand.lines * operand.length; start += 16) {
    double out[16];
    for (std::size_t j = 0; j < 16; ++j) {
      long double sum = 0;
      for (std::size_t k = 0; k < 16; ++k) {
        bool minus = (sign_mask >> k & 1) != 0;
        for (std::size_t bits = j & k; bits != 0; bits &= bits - 1) minus = !minus;
        const long double x = operand.items[start + k];
        sum += minus ? -x : x;
      }
      out[j] = RoundToItem(static_cast<double>(sum / 4), dtype);
    }
    std::copy(out, out + 16, operand.items.begin() + static_cast<std::ptrdiff_t>(start));
  }
}

Lines MakeLines(const FloatTensor& in, const QuantSpec& spec, bool rowwise) {
  const MatrixShape matrix = FlattenShape(in.shape());
  Lines operand{rowwise ? matrix.rows : matrix.cols, rowwise ? matrix.cols : matrix.rows, {}};
  for (std::size_t line = 0; line < operand.lines; ++line) {
    for (std::size_t i = 0; i < operand.length; ++i)
      operand.items.push_back(in.Value(rowwise ? line * matrix.cols + i : i * matrix.cols + line));
  }
  if (spec.rht && !rowwise) Transform(operand, spec.rht_sign_mask, in.dtype());
  return operand;
}

double Amax(const Lines& operand, std::size_t line, std::size_t lines, std::size_t start,
            std::size_t count) {
  double amax = 0;
  for (std::size_t l = line; l < line + lines; ++l) {
    for (std::size_t i = start; i < start + count; ++i) {
      const double magnitude = std::fabs(operand.At(l, i));
      if (magnitude > amax) amax = magnitude;
    }
  }
  return amax;
}

struct Scale {
  std::uint32_t code;
  double encode;
};

class Nvfp4Reference {
 public:
  Nvfp4Reference(const QuantSpec& spec, const Lines& operand, bool rowwise)
      : spec_(spec), operand_(operand), rowwise_(rowwise) {}

  void Prepare(double amax) {
    amax_ = amax;
    range_ = 6.0 * static_cast<double>(spec_.e4m3_max);
    s_ = Fmin(F32(range_ / amax), kLargest);
    if (amax == 0 || s_ == 0) s_ = 1;
  }
  Scale ScaleOf(std::size_t line, std::size_t lines, std::size_t start) const {
    const double amax = Amax(operand_, line, lines, start, 16);
    if (spec_.four_over_six == FourOverSix::kOff) {
      const double g = F32(s_ * static_cast<double>(std::bit_cast<float>(0x3E2AAAABu)));
      return From(Fmin(F32(amax * g), kLargest));
    }
    const double base = F32(F32(amax / 6.0) * s_);
    const Scale four = From(Fmin(F32(base * 1.5), 448)), six = From(Fmin(base, 448));
    return Error(line, lines, start, four) < Error(line, lines, start, six) ? four : six;
  }
  std::uint32_t Code(std::size_t line, std::size_t i, const Scale& scale) const {
    const double product = F32(operand_.At(line, i) * scale.encode);
    if (spec_.stochastic_rounding) return Stochastic(product, RandomByte(line, i));
    return ReferenceCodecOf("e2m1").Encode(product);
  }

 private:
  Scale From(double wanted) const {
    const ReferenceCodec& e4m3 = ReferenceCodecOf("e4m3");
    const std::uint32_t code = e4m3.Encode(wanted);
    const double below = F32(e4m3.Value(code) * F32(1.0 / s_));
    return {code, Fmin(F32(1.0 / below), kLargest)};
  }
  double Error(std::size_t line, std::size_t lines, std::size_t start, const Scale& scale) const {
    const double factor = ReferenceCodecOf("e4m3").Value(scale.code);
    double errors[16] = {};
    for (std::size_t l = 0; l < lines; ++l) {
      for (std::size_t i = start; i < start + 16; ++i) {
        const double x = operand_.At(line + l, i);
        const double dq =
            ReferenceCodecOf("e2m1").Value(ReferenceCodecOf("e2m1").Encode(F32(x * scale.encode)));
        const double d = spec_.four_over_six_fast_error
                             ? F32(dq * factor - F32(x * s_))
                             : F32(F32(F32(F32(dq * factor) * amax_) / range_) - x);
        const bool squares = spec_.four_over_six == FourOverSix::kMeanSquaredError;
        errors[l] = F32(errors[l] + (squares ? F32(d * d) : std::fabs(d)));
      }
    }
    if (lines == 1) return errors[0];
    for (const std::size_t half : {8u, 4u, 2u, 1u}) {
      for (std::size_t i = 0; i < half; ++i) errors[i] = F32(errors[i] + errors[i + half]);
    }
    return errors[0];
  }

  /// Returns the random byte of an item, by an independent implementation of Philox4x32-10. Source:
  /// docs/numerics.md, "NVFP4".
  std::uint32_t RandomByte(std::size_t line, std::size_t i) const {
    const std::uint64_t blocks = (operand_.length + 15) / 16;
    const std::uint64_t run = line * blocks + i / 16 + (rowwise_ ? 0 : std::uint64_t{1} << 63);
    std::uint32_t c[4] = {static_cast<std::uint32_t>(spec_.offset),
                          static_cast<std::uint32_t>(spec_.offset >> 32),
                          static_cast<std::uint32_t>(run), static_cast<std::uint32_t>(run >> 32)};
    std::uint32_t k[2] = {static_cast<std::uint32_t>(spec_.seed),
                          static_cast<std::uint32_t>(spec_.seed >> 32)};
    for (int round = 0; round < 10; ++round) {
      const auto a = static_cast<unsigned __int128>(c[0]) * 0xD2511F53u;
      const auto b = static_cast<unsigned __int128>(c[2]) * 0xCD9E8D57u;
      const std::uint32_t next[4] = {
          static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(a)};
      std::copy(next, next + 4, c);
      k[0] += 0x9E3779B9u;
      k[1] += 0xBB67AE85u;
    }
    return c[i % 16 / 4] >> i % 4 * 8 & 0xFFu;
  }
  static std::uint32_t Stochastic(double y, std::uint32_t random) {
    const double a = std::fabs(y);
    const double step = a < 2 ? 0.5 : a < 4 ? 1 : 2;
    const double t = static_cast<double>(std::fma(static_cast<float>(random) / 256.0f,
                                                  static_cast<float>(step), static_cast<float>(a)));
    const double v = std::isnan(y) ? 6 : std::min(std::floor(t / step) * step, 6.0);
    const bool minus = std::signbit(y) && !std::isnan(y);
    return ReferenceCodecOf("e2m1").Encode(minus ? -v : v);
  }

  const QuantSpec& spec_;
  const Lines& operand_;
  bool rowwise_;
  double amax_ = 0, range_ = 0, s_ = 1;
};

}  // namespace

void ReferenceNvfp4(const FloatTensor& in, bool rowwise, QuantizedBuffers& out) {
  const QuantSpec& spec = out.view.spec;
  const Lines operand = MakeLines(in, spec, rowwise);
  std::byte* codes = out.Data(rowwise ? Role::kRowwiseData : Role::kColumnwiseData);
  std::byte* amaxes = out.Data(rowwise ? Role::kAmaxRowwise : Role::kAmaxColumnwise);
  const Role scales = rowwise ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv;
  std::memset(out.Data(scales), 0, out.Bytes(scales));
  Nvfp4Reference reference(spec, operand, rowwise);
  const std::optional<float> given =
      !rowwise && spec.amax_columnwise ? spec.amax_columnwise : spec.amax;
  const auto prepare = [&](std::size_t line, std::size_t lines, std::size_t place) {
    const auto measured = static_cast<float>(Amax(operand, line, lines, 0, operand.length));
    const float amax = given.value_or(measured);
    reference.Prepare(static_cast<double>(amax));
    std::memcpy(amaxes + place * sizeof amax, &amax, sizeof amax);
  };
  if (!spec.row_scaled) prepare(0, operand.lines, 0);
  const std::size_t blocks = (operand.length + 15) / 16, stored = (blocks + 3) / 4 * 4;
  const bool tiles = spec.scheme->name == "nvfp4_2d";
  for (std::size_t line = 0; line < operand.lines; ++line) {
    if (spec.row_scaled) prepare(line, 1, line);
    for (std::size_t block = 0; block < blocks; ++block) {
      const Scale scale = tiles ? reference.ScaleOf(line / 16 * 16, 16, block * 16)
                                : reference.ScaleOf(line, 1, block * 16);
      const std::size_t place = spec.swizzled ? (line / 128 * (stored / 4) + block / 4) * 512 +
                                                    line % 32 * 16 + line % 128 / 32 * 4 + block % 4
                                              : line * stored + block;
      out.Data(scales)[place] = static_cast<std::byte>(scale.code);
      for (std::size_t i = block * 16; i < std::min(operand.length, block * 16 + 16); ++i) {
        std::byte& byte = codes[line * (operand.length / 2) + i / 2];
        const auto code = static_cast<std::byte>(reference.Code(line, i, scale));
        byte = i % 2 == 0 ? code : byte | code << 4;
      }
    }
  }
}

}  // namespace narrowfloat::conformance
