// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "narrowfloat/schemes/registry.h"

namespace narrowfloat {

/// What is wanted: a scheme, directions and options. A value; it compares by bits, so NaN equals
/// NaN. Its text form is `scheme[:key=value,...]` with keys in sorted order and defaults left out,
/// for example `fp8_e4m3:columnwise=1,force_pow_2_scales=1`.
struct QuantSpec {
  const SchemeInfo* scheme = &kSchemes.front();
  bool rowwise = true;
  bool columnwise = false;
  std::optional<float> scale{};  // given: delayed scaling
  std::optional<float> amax{};   // given: stands in for the measured one
  float amax_epsilon = 0.0f;
  bool force_pow_2_scales = false;
  bool swizzled = false;  // scales in the tiles that GEMMs read

  bool operator==(const QuantSpec& other) const;
};

/// The scheme of that name. Errors: InvalidArgument naming all schemes.
const SchemeInfo& FindScheme(std::string_view name);

/// Position of a scheme in AllSchemes, and so in every kernel table.
std::size_t SchemeIndex(const SchemeInfo& scheme);

using SpecValue = std::variant<bool, float>;

/// Keys of the text form and of keyword arguments, sorted.
std::vector<std::string_view> SpecKeys();

/// Sets one field by its key; false for an unknown key. `value` converts between bool and float
/// only where nothing is lost. Errors: InvalidArgument if the value is not one that the key takes.
bool SetSpecField(QuantSpec& spec, std::string_view key, SpecValue value);

/// Errors: InvalidArgument naming the option that the scheme does not take and the ones it does, a
/// pair of options that exclude each other, a value out of range, or that no direction is wanted.
void ValidateSpec(const QuantSpec& spec);

/// Parses the text form and validates it. The text is hostile until parsed. Errors:
/// InvalidArgument.
QuantSpec ParseQuantSpec(std::string_view text);

/// The text form: ParseQuantSpec(PrintQuantSpec(s)) == s.
std::string PrintQuantSpec(const QuantSpec& spec);

}  // namespace narrowfloat
