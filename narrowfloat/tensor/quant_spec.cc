// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/quant_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "narrowfloat/tensor/closest_name.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/float_environment.h"
#include "narrowfloat/tensor/shortened.h"
#include "narrowfloat/tensor/spec_field.h"

namespace narrowfloat {
namespace {

bool Takes(const SchemeInfo& scheme, const SpecField& field) {
  return field.option.bits == 0 || (field.option.bits & scheme.options.bits) != 0;
}

/// Returns the keys that the text of a scheme's spec may have.
std::vector<std::string_view> KeysOf(const SchemeInfo& scheme) {
  std::vector<std::string_view> keys;
  for (const SpecField& field : SpecFields()) {
    if (Takes(scheme, field)) keys.push_back(field.key);
  }
  return keys;
}

/// Returns the options of a spec's text in sorted order; an empty text if one is repeated.
std::string SortedOptions(std::string_view options) {
  std::vector<std::string_view> items;
  while (!options.empty()) {
    const std::size_t comma = options.find(',');
    items.push_back(options.substr(0, comma));
    options = comma == std::string_view::npos ? "" : options.substr(comma + 1);
  }
  const auto key = [](std::string_view item) { return item.substr(0, item.find('=')); };
  std::ranges::sort(items, {}, key);
  const bool repeats = std::ranges::adjacent_find(items, {}, key) != items.end();
  return repeats ? "" : fmt::format("{}", fmt::join(items, ","));
}

void CheckExclusive(const QuantSpec& spec) {
  if (spec.scale && (spec.amax_epsilon != 0.0f || spec.ForcesPow2Scales())) {
    throw InvalidArgument(
        "quantize: amax_epsilon and force_pow_2_scales must not be given together with scale");
  }
  if (spec.row_scaled && (spec.amax || spec.amax_columnwise)) {
    throw InvalidArgument("quantize: row_scaled must not be given together with amax");
  }
  const bool chooses = spec.four_over_six != FourOverSix::kOff;
  for (const auto& [set, key] :
       {std::pair{spec.rht, "rht"}, std::pair{spec.stochastic_rounding, "stochastic_rounding"}}) {
    if (set && chooses)
      throw InvalidArgument(
          fmt::format("quantize: four_over_six must not be given together with {}", key));
    if (set && spec.row_scaled)
      throw InvalidArgument(
          fmt::format("quantize: row_scaled must not be given together with {}", key));
  }
}

void CheckRanges(const QuantSpec& spec) {
  if (!(spec.amax_epsilon >= 0.0f) || std::isinf(spec.amax_epsilon)) {
    throw InvalidArgument(fmt::format(
        "quantize: amax_epsilon must be finite and not negative, got {}", spec.amax_epsilon));
  }
  constexpr float kLargest = kMaxValue<E4M3>;
  if (spec.e4m3_max != kLargest && spec.e4m3_max != kReducedE4M3Max) {
    throw InvalidArgument(fmt::format("quantize: e4m3_max must be {} or {}, got {}", kLargest,
                                      kReducedE4M3Max, spec.e4m3_max));
  }
  if (spec.rht_sign_mask >> kHadamardSize != 0) {
    throw InvalidArgument(fmt::format("quantize: rht_sign_mask must fit in {} bits, got {}",
                                      kHadamardSize, spec.rht_sign_mask));
  }
}

}  // namespace

bool QuantSpec::operator==(const QuantSpec& other) const {
  return scheme == other.scheme && std::ranges::all_of(SpecFields(), [&](const SpecField& field) {
           return field.Same(*this, other);
         });
}

const SchemeInfo& FindScheme(std::string_view name) {
  for (const SchemeInfo& scheme : kSchemes) {
    if (scheme.name == name) return scheme;
  }
  std::vector<std::string_view> names;
  for (const SchemeInfo& scheme : kSchemes) names.push_back(scheme.name);
  throw InvalidArgument(fmt::format("unknown scheme '{}'{}; there are: {}", Shortened(name),
                                    DidYouMean(name, names), fmt::join(names, ", ")));
}

std::size_t SchemeIndex(const SchemeInfo& scheme) {
  return static_cast<std::size_t>(&scheme - kSchemes.data());
}

std::vector<std::string_view> SpecKeys() {
  std::vector<std::string_view> keys;
  for (const SpecField& field : SpecFields()) keys.push_back(field.key);
  return keys;
}

std::vector<std::string_view> OptionKeys(const SchemeInfo& scheme) {
  std::vector<std::string_view> keys;
  for (const SpecField& field : SpecFields()) {
    if (field.option.bits != 0 && Takes(scheme, field)) keys.push_back(field.key);
  }
  return keys;
}

bool SetSpecField(QuantSpec& spec, std::string_view key, SpecValue value) {
  const SpecField* field = FindSpecField(key);
  if (field == nullptr) return false;
  field->Set(spec, value);
  return true;
}

void CheckScheme(const QuantSpec& spec) {
  const auto is_it = [&](const SchemeInfo& scheme) { return &scheme == spec.scheme; };
  if (std::ranges::any_of(kSchemes, is_it)) return;
  throw InvalidArgument(fmt::format("spec: scheme must point to an element of kSchemes, got {}",
                                    spec.scheme == nullptr ? "null" : "another address"));
}

void ValidateSpec(const QuantSpec& spec) {
  CheckScheme(spec);
  const SchemeInfo& scheme = *spec.scheme;
  const QuantSpec defaults{.scheme = spec.scheme};
  for (const SpecField& field : SpecFields()) {
    if (Takes(scheme, field) || field.Same(spec, defaults)) continue;
    throw InvalidArgument(fmt::format("quantize: {} does not take the option '{}'; it takes: {}",
                                      scheme.name, field.key, fmt::join(KeysOf(scheme), ", ")));
  }
  if (!spec.rowwise && !spec.columnwise) {
    throw InvalidArgument(
        fmt::format("quantize: {} needs rowwise, columnwise or both, got neither", scheme.name));
  }
  const FloatEnvironment environment;  // keeps a subnormal amax_epsilon from comparing equal to 0
  CheckRanges(spec);
  CheckExclusive(spec);
}

void ValidateForQuantize(const QuantSpec& spec) {
  if (spec.e4m3_max == kMaxValue<E4M3> || spec.four_over_six != FourOverSix::kOff) return;
  throw InvalidArgument(fmt::format("quantize: e4m3_max must be {} without four_over_six, got {}",
                                    kMaxValue<E4M3>, spec.e4m3_max));
}

QuantSpec ParseQuantSpec(std::string_view text) {
  const std::size_t colon = text.find(':');
  QuantSpec spec{.scheme = &FindScheme(text.substr(0, colon))};
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (colon != std::string_view::npos && rest.empty()) {
    throw InvalidArgument(
        fmt::format("spec: needs an option after ':', got '{}'", Shortened(text)));
  }
  std::string_view previous;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      throw InvalidArgument(
          fmt::format("spec: options must be key=value, got '{}'", Shortened(item)));
    }
    const std::string_view key = item.substr(0, equals);
    const SpecField* field = FindSpecField(key);
    if (field == nullptr) {
      throw InvalidArgument(fmt::format("spec: unknown option '{}'{}; there are: {}",
                                        Shortened(key), DidYouMean(key, SpecKeys()),
                                        fmt::join(SpecKeys(), ", ")));
    }
    if (key <= previous) {
      const std::string sorted = SortedOptions(text.substr(colon + 1));
      throw InvalidArgument(fmt::format(
          "spec: options must be sorted and given once, got '{}'{}", Shortened(text),
          sorted.empty()
              ? ""
              : fmt::format("; sorted it is '{}:{}'", text.substr(0, colon), Shortened(sorted))));
    }
    previous = key;
    field->Set(spec, field->Parse(item.substr(equals + 1)));
    if (comma != std::string_view::npos && comma + 1 == rest.size()) {
      throw InvalidArgument(
          fmt::format("spec: needs an option after ',', got '{}'", Shortened(text)));
    }
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
  ValidateSpec(spec);
  return spec;
}

std::string PrintQuantSpec(const QuantSpec& spec) {
  CheckScheme(spec);
  const QuantSpec defaults{.scheme = spec.scheme};
  std::string text(spec.scheme->name);
  char separator = ':';
  for (const SpecField& field : SpecFields()) {
    const std::optional<SpecValue> value = field.Get(spec);
    if (!value || field.Same(spec, defaults)) continue;
    text += fmt::format("{}{}={}", separator, field.key, PrintSpecValue(*value));
    separator = ',';
  }
  return text;
}

}  // namespace narrowfloat
