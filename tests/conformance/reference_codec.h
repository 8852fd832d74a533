// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace narrowfloat::conformance {

/// A format, from the table in its standard. Repeated here on purpose: the expected results must
/// not depend on the constants under test.
struct ReferenceFormat {
  std::string_view name;
  int exponent_bits, mantissa_bits, bias;
  std::uint32_t largest;  // code of the largest finite magnitude
  std::uint32_t nan;      // code that NaN is encoded to
  bool has_infinity;
};
inline constexpr ReferenceFormat kReferenceFormats[] = {
    {"e4m3", 4, 3, 7, 0x7E, 0x7F, false},
    {"e5m2", 5, 2, 15, 0x7B, 0x7F, true},
    {"e2m1", 2, 1, 1, 0x7, 0x7, false},
    {"float16", 5, 10, 15, 0x7BFF, 0x7E00, true},
    {"bfloat16", 8, 7, 127, 0x7F7F, 0x7FC0, true},
};

enum class PastLargest { kSaturates, kIsInfinite };

/// Encodes and decodes by a table and a search in binary64, in which all values and midpoints of
/// these formats are exact. Shares no step with the integer arithmetic under test.
class ReferenceCodec {
 public:
  explicit ReferenceCodec(const ReferenceFormat& format) : format_(format) {
    for (std::uint32_t code = 0; code <= format.largest; ++code) {
      const std::uint32_t exponent = code >> format.mantissa_bits;
      const double fraction =
          std::ldexp(code & ((1u << format.mantissa_bits) - 1u), -format.mantissa_bits);
      grid_.push_back(exponent == 0
                          ? std::ldexp(fraction, 1 - format.bias)
                          : std::ldexp(1.0 + fraction, static_cast<int>(exponent) - format.bias));
    }
  }

  const ReferenceFormat& format() const { return format_; }
  std::uint32_t SignCode() const { return 1u << (format_.exponent_bits + format_.mantissa_bits); }
  std::uint32_t CodeCount() const { return SignCode() * 2; }

  double Value(std::uint32_t code) const {
    const std::uint32_t magnitude = code & (SignCode() - 1u);
    const double sign = (code & SignCode()) != 0 ? -1.0 : 1.0;
    if (magnitude <= format_.largest) return sign * grid_[magnitude];
    return format_.has_infinity && magnitude == format_.largest + 1
               ? sign * std::numeric_limits<double>::infinity()
               : std::numeric_limits<double>::quiet_NaN();
  }

  /// Returns true if two codes are equal, or if both are NaN.
  bool SameCode(std::uint32_t a, std::uint32_t b) const {
    return a == b || (std::isnan(Value(a)) && std::isnan(Value(b)));
  }

  std::uint32_t Encode(double x, PastLargest past = PastLargest::kSaturates) const {
    if (std::isnan(x)) return format_.nan;
    const std::uint32_t sign = std::signbit(x) ? SignCode() : 0u;
    const double magnitude = std::fabs(x);
    const auto above = std::upper_bound(grid_.begin(), grid_.end(), magnitude);
    const auto below = static_cast<std::uint32_t>(above - grid_.begin()) - 1u;
    if (above == grid_.end()) {
      // Rounds as if one more step followed the largest value. A tie rounds to it, because its code
      // is even in all formats with an infinity.
      const double step = grid_.back() - grid_[grid_.size() - 2];
      const bool infinite =
          past == PastLargest::kIsInfinite && magnitude >= grid_.back() + step / 2;
      return sign | (infinite ? format_.largest + 1 : format_.largest);
    }
    const double middle = Middle(below);
    const bool up = magnitude > middle || (magnitude == middle && below % 2 != 0);
    return sign | (up ? below + 1 : below);
  }

  /// Returns the exact middle of code and code + 1.
  double Middle(std::uint32_t code) const { return (grid_[code] + grid_[code + 1]) / 2; }

  /// Returns, for each magnitude code, the bits of the smallest float that is encoded to it: codes
  /// of increasing floats are runs. Requires: the format's midpoints are fp32 numbers.
  std::vector<std::uint32_t> FirstFloatBits() const {
    std::vector<std::uint32_t> first{0};
    for (std::uint32_t code = 1; code <= format_.largest; ++code) {
      const auto middle = static_cast<float>(Middle(code - 1));
      first.push_back(std::bit_cast<std::uint32_t>(middle) + (code % 2 != 0 ? 1u : 0u));
    }
    return first;
  }

 private:
  ReferenceFormat format_;
  std::vector<double> grid_;
};

/// Returns the codec of the format `name`. Requires: kReferenceFormats lists it.
inline const ReferenceCodec& ReferenceCodecOf(std::string_view name) {
  static const std::vector<ReferenceCodec> codecs(std::begin(kReferenceFormats),
                                                  std::end(kReferenceFormats));
  return *std::ranges::find(codecs, name,
                            [](const ReferenceCodec& codec) { return codec.format().name; });
}

}  // namespace narrowfloat::conformance
