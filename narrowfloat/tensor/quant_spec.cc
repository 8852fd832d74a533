// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/quant_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr OptionSet kAlways{0};

/// A field of QuantSpec by its key. Exactly one of the member pointers is set.
struct Field {
  std::string_view key;
  OptionSet
      option;  // the option bit it stands for; empty for the directions, which every scheme has
  bool QuantSpec::*flag = nullptr;
  float QuantSpec::*number = nullptr;
  std::optional<float> QuantSpec::*maybe = nullptr;
};

// Sorted by key, which is the order of the text form.
constexpr Field kFields[] = {
    {.key = "amax", .option = OptionSet{} | Option::kAmax, .maybe = &QuantSpec::amax},
    {.key = "amax_epsilon",
     .option = OptionSet{} | Option::kAmaxEpsilon,
     .number = &QuantSpec::amax_epsilon},
    {.key = "columnwise", .option = kAlways, .flag = &QuantSpec::columnwise},
    {.key = "force_pow_2_scales",
     .option = OptionSet{} | Option::kForcePow2Scales,
     .flag = &QuantSpec::force_pow_2_scales},
    {.key = "rowwise", .option = kAlways, .flag = &QuantSpec::rowwise},
    {.key = "scale", .option = OptionSet{} | Option::kScale, .maybe = &QuantSpec::scale},
    {.key = "swizzled", .option = OptionSet{} | Option::kSwizzled, .flag = &QuantSpec::swizzled},
};
static_assert(std::ranges::is_sorted(kFields, {}, &Field::key));

std::optional<float> NumberOf(const QuantSpec& spec, const Field& field) {
  return field.maybe != nullptr ? spec.*field.maybe : std::optional<float>(spec.*field.number);
}

bool SameBits(std::optional<float> a, std::optional<float> b) {
  return a.has_value() == b.has_value() &&
         (!a || std::bit_cast<std::uint32_t>(*a) == std::bit_cast<std::uint32_t>(*b));
}

bool SameField(const QuantSpec& a, const QuantSpec& b, const Field& field) {
  if (field.flag != nullptr) return a.*field.flag == b.*field.flag;
  return SameBits(NumberOf(a, field), NumberOf(b, field));
}

const Field* FindField(std::string_view key) {
  const auto* found = std::ranges::find(kFields, key, &Field::key);
  return found == std::end(kFields) ? nullptr : found;
}

std::vector<std::string_view> KeysOf(const SchemeInfo& scheme) {
  std::vector<std::string_view> keys;
  for (const Field& field : kFields) {
    if (field.option.bits != 0 && (field.option.bits & scheme.options.bits) != 0)
      keys.push_back(field.key);
  }
  return keys;
}

SpecValue ParseValue(const Field& field, std::string_view text) {
  if (field.flag != nullptr) {
    if (text == "0" || text == "1") return text == "1";
    throw InvalidArgument(fmt::format("spec: {} is 0 or 1, got '{}'", field.key, text));
  }
  float value = 0.0f;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw InvalidArgument(
        fmt::format("spec: {} is a number that float32 holds, got '{}'", field.key, text));
  }
  return value;
}

}  // namespace

bool QuantSpec::operator==(const QuantSpec& other) const {
  return scheme == other.scheme && std::ranges::all_of(kFields, [&](const Field& field) {
           return SameField(*this, other, field);
         });
}

const SchemeInfo& FindScheme(std::string_view name) {
  for (const SchemeInfo& scheme : kSchemes) {
    if (scheme.name == name) return scheme;
  }
  std::vector<std::string_view> names;
  for (const SchemeInfo& scheme : kSchemes) names.push_back(scheme.name);
  throw InvalidArgument(
      fmt::format("unknown scheme '{}'; there are: {}", name, fmt::join(names, ", ")));
}

std::size_t SchemeIndex(const SchemeInfo& scheme) {
  return static_cast<std::size_t>(&scheme - kSchemes.data());
}

std::vector<std::string_view> SpecKeys() {
  std::vector<std::string_view> keys;
  for (const Field& field : kFields) keys.push_back(field.key);
  return keys;
}

bool SetSpecField(QuantSpec& spec, std::string_view key, SpecValue value) {
  const Field* field = FindField(key);
  if (field == nullptr) return false;
  if (field->flag != nullptr) {
    const bool* given = std::get_if<bool>(&value);
    const float number = given == nullptr ? std::get<float>(value) : *given ? 1.0f : 0.0f;
    if (number != 0.0f && number != 1.0f) {
      throw InvalidArgument(fmt::format("quantize: {} is True or False, got {}", key, number));
    }
    spec.*field->flag = number == 1.0f;
    return true;
  }
  if (std::holds_alternative<bool>(value)) {
    throw InvalidArgument(
        fmt::format("quantize: {} is a number, got {}", key, std::get<bool>(value)));
  }
  if (field->maybe != nullptr) {
    spec.*field->maybe = std::get<float>(value);
  } else {
    spec.*field->number = std::get<float>(value);
  }
  return true;
}

void ValidateSpec(const QuantSpec& spec) {
  const SchemeInfo& scheme = *spec.scheme;
  const QuantSpec defaults{.scheme = spec.scheme};
  for (const Field& field : kFields) {
    if (field.option.bits == 0 || (field.option.bits & scheme.options.bits) != 0) continue;
    if (SameField(spec, defaults, field)) continue;
    throw InvalidArgument(fmt::format("quantize: {} does not take the option '{}'; it takes: {}",
                                      scheme.name, field.key, fmt::join(KeysOf(scheme), ", ")));
  }
  if (!spec.rowwise && !spec.columnwise) {
    throw InvalidArgument(
        fmt::format("quantize: {} needs rowwise, columnwise or both, got neither", scheme.name));
  }
  if (!(spec.amax_epsilon >= 0.0f) || std::isinf(spec.amax_epsilon)) {
    throw InvalidArgument(fmt::format(
        "quantize: amax_epsilon must be finite and not negative, got {}", spec.amax_epsilon));
  }
  if (spec.scale && (spec.amax_epsilon != 0.0f || spec.force_pow_2_scales)) {
    throw InvalidArgument(
        "quantize: amax_epsilon and force_pow_2_scales shape a computed scale and cannot go with a "
        "given one (scale)");
  }
}

QuantSpec ParseQuantSpec(std::string_view text) {
  const std::size_t colon = text.find(':');
  QuantSpec spec{.scheme = &FindScheme(text.substr(0, colon))};
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (colon != std::string_view::npos && rest.empty()) {
    throw InvalidArgument(fmt::format("spec: '{}' ends in ':' without an option", text));
  }
  std::string_view previous;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      throw InvalidArgument(fmt::format("spec: options read key=value, got '{}'", item));
    }
    const std::string_view key = item.substr(0, equals);
    const Field* field = FindField(key);
    if (field == nullptr) {
      throw InvalidArgument(fmt::format("spec: unknown option '{}'; there are: {}", key,
                                        fmt::join(SpecKeys(), ", ")));
    }
    if (key <= previous)
      throw InvalidArgument(fmt::format("spec: options are sorted and stand once, got '{}'", text));
    previous = key;
    SetSpecField(spec, key, ParseValue(*field, item.substr(equals + 1)));
    if (comma != std::string_view::npos && comma + 1 == rest.size()) {
      throw InvalidArgument(fmt::format("spec: '{}' ends in ',' without an option", text));
    }
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
  ValidateSpec(spec);
  return spec;
}

std::string PrintQuantSpec(const QuantSpec& spec) {
  const QuantSpec defaults{.scheme = spec.scheme};
  std::string text(spec.scheme->name);
  char separator = ':';
  for (const Field& field : kFields) {
    if (SameField(spec, defaults, field)) continue;
    text += field.flag != nullptr
                ? fmt::format("{}{}={}", separator, field.key, spec.*field.flag ? 1 : 0)
                : fmt::format("{}{}={}", separator, field.key, *NumberOf(spec, field));
    separator = ',';
  }
  return text;
}

}  // namespace narrowfloat
