// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "narrowfloat/numerics/hadamard.h"
#include "narrowfloat/schemes/registry.h"

namespace narrowfloat {

/// Specifies a quantized tensor: scheme, directions and options. A value type; it compares by bits,
/// and NaNs by their sign, as they are printed. Its text form is `scheme[:key=value,...]` with keys
/// in sorted order and without defaults, for example `fp8_e4m3:columnwise=1,force_pow_2_scales=1`.
struct QuantSpec {
  const SchemeInfo* scheme = &kSchemes.front();  // an element of kSchemes, not a copy of one
  bool rowwise = true;
  bool columnwise = false;
  std::optional<float> scale{};            // given: delayed scaling
  std::optional<float> amax{};             // given: used instead of the measured amax
  std::optional<float> amax_columnwise{};  // given: as amax, for the columnwise direction only
  float amax_epsilon = 0.0f;
  std::optional<bool> force_pow_2_scales{};  // absent: the scheme's default
  bool swizzled = false;                     // scales are stored in the tiles that GEMMs read
  bool rht = false;  // applies the random Hadamard transform to the columnwise operand first
  std::uint64_t rht_sign_mask = kHadamardSignMask;  // bit k negates row k of a group
  bool stochastic_rounding = false;
  std::uint64_t seed = 0, offset = 0;  // for stochastic rounding
  bool row_scaled = false;             // one amax per line
  FourOverSix four_over_six = FourOverSix::kOff;
  bool four_over_six_fast_error = false;
  float e4m3_max = kMaxValue<E4M3>;  // largest block scale; 448, or 256 with four_over_six

  bool operator==(const QuantSpec& other) const;
  bool ForcesPow2Scales() const {
    return force_pow_2_scales.value_or(scheme->on_by_default.Has(Option::kForcePow2Scales));
  }
};

/// Returns the scheme of that name. Errors: InvalidArgument naming all schemes.
const SchemeInfo& FindScheme(std::string_view name);

/// Returns the position of a scheme in AllSchemes, which is its index in every kernel table.
/// Requires: an element of kSchemes.
std::size_t SchemeIndex(const SchemeInfo& scheme);

/// Value of a field. Words are as in the text form: "mae".
using SpecValue = std::variant<bool, float, std::uint64_t, std::string_view>;

/// Returns the keys of the text form and of keyword arguments, sorted.
std::vector<std::string_view> SpecKeys();

/// Returns the option keys that a scheme accepts, sorted.
std::vector<std::string_view> OptionKeys(const SchemeInfo& scheme);

/// Sets one field by its key; returns false for an unknown key. Converts 0 and 1 to bool, and no
/// other types. Errors: InvalidArgument if `value` is invalid for the key.
bool SetSpecField(QuantSpec& spec, std::string_view key, SpecValue value);

/// Checks that spec.scheme points to an element of kSchemes. Errors: InvalidArgument.
void CheckScheme(const QuantSpec& spec);

/// Checks a spec. Errors: as CheckScheme; InvalidArgument for an option that the scheme does not
/// have, options that exclude each other, a value out of range, or a spec without a direction.
void ValidateSpec(const QuantSpec& spec);

/// Checks a valid spec. Errors: InvalidArgument if it is supported for dequantization only.
void ValidateForQuantize(const QuantSpec& spec);

/// Parses the text form and validates it. Accepts untrusted text. Errors:
/// InvalidArgument.
QuantSpec ParseQuantSpec(std::string_view text);

/// Returns the text form: ParseQuantSpec(PrintQuantSpec(s)) == s. Errors: as CheckScheme.
std::string PrintQuantSpec(const QuantSpec& spec);

}  // namespace narrowfloat
