// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "narrowfloat/tensor/quant_spec.h"

namespace narrowfloat {

/// A field of QuantSpec by its key: its option, and how to read, set, parse and print it.
struct SpecField {
  /// An optional bool has the scheme's default; an optional float is absent by default.
  using Member = std::variant<bool QuantSpec::*, std::optional<bool> QuantSpec::*,
                              float QuantSpec::*, std::optional<float> QuantSpec::*,
                              std::uint64_t QuantSpec::*, FourOverSix QuantSpec::*>;

  std::string_view key;
  OptionSet option;  // its bit; empty for the directions, which every scheme has
  Member member;

  /// Returns the value, defaults resolved; nullopt if it is absent.
  std::optional<SpecValue> Get(const QuantSpec& spec) const;
  /// Sets the field. Errors: InvalidArgument if `value` is invalid for it.
  void Set(QuantSpec& spec, SpecValue value) const;
  /// Parses a value. Errors: InvalidArgument naming the accepted values.
  SpecValue Parse(std::string_view text) const;
  /// Returns true if the field is equal in both specs; floats by bits.
  bool Same(const QuantSpec& a, const QuantSpec& b) const;
};

/// Returns all fields, sorted by key, which is the order of the text form.
std::span<const SpecField> SpecFields();

/// Returns the field of that key, or null.
const SpecField* FindSpecField(std::string_view key);

/// Returns a value as the text form prints it.
std::string PrintSpecValue(const SpecValue& value);

}  // namespace narrowfloat
