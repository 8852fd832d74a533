// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "narrowfloat/tensor/quant_spec.h"

namespace narrowfloat {

/// A field of QuantSpec by its key: what it is, how it is read, set, parsed and printed.
struct SpecField {
  /// An optional bool has its default from the scheme, an optional float is absent by default.
  using Member = std::variant<bool QuantSpec::*, std::optional<bool> QuantSpec::*,
                              float QuantSpec::*, std::optional<float> QuantSpec::*,
                              std::uint64_t QuantSpec::*, FourOverSix QuantSpec::*>;

  std::string_view key;
  OptionSet option;  // the bit it stands for; empty for the directions, which every scheme has
  Member member;

  /// Its value, defaults resolved; none where it is absent.
  std::optional<SpecValue> Get(const QuantSpec& spec) const;
  /// Errors: InvalidArgument if it does not take such a value.
  void Set(QuantSpec& spec, SpecValue value) const;
  /// Errors: InvalidArgument naming what the text must be.
  SpecValue Parse(std::string_view text) const;
  /// Whether both specs say the same; floats by bits.
  bool Same(const QuantSpec& a, const QuantSpec& b) const;
};

/// All of them, sorted by key, which is the order of the text form.
std::span<const SpecField> SpecFields();

/// null if there is none of that key.
const SpecField* FindSpecField(std::string_view key);

/// As the text form has it.
std::string PrintSpecValue(const SpecValue& value);

}  // namespace narrowfloat
