// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/spec_field.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/float_environment.h"
#include "narrowfloat/tensor/shortened.h"

namespace narrowfloat {
namespace {

constexpr OptionSet kAlways{};

constexpr SpecField MakeField(std::string_view key, Option option, SpecField::Member member) {
  return {key, OptionSet{} | option, member};
}

constexpr SpecField kFields[] = {
    MakeField("amax", Option::kAmax, &QuantSpec::amax),
    MakeField("amax_columnwise", Option::kAmaxColumnwise, &QuantSpec::amax_columnwise),
    MakeField("amax_epsilon", Option::kAmaxEpsilon, &QuantSpec::amax_epsilon),
    {"columnwise", kAlways, &QuantSpec::columnwise},
    MakeField("e4m3_max", Option::kFourOverSix, &QuantSpec::e4m3_max),
    MakeField("force_pow_2_scales", Option::kForcePow2Scales, &QuantSpec::force_pow_2_scales),
    MakeField("four_over_six", Option::kFourOverSix, &QuantSpec::four_over_six),
    MakeField("four_over_six_fast_error", Option::kFourOverSix,
              &QuantSpec::four_over_six_fast_error),
    MakeField("offset", Option::kStochasticRounding, &QuantSpec::offset),
    MakeField("rht", Option::kHadamard, &QuantSpec::rht),
    MakeField("rht_sign_mask", Option::kHadamard, &QuantSpec::rht_sign_mask),
    MakeField("row_scaled", Option::kRowScaled, &QuantSpec::row_scaled),
    {"rowwise", kAlways, &QuantSpec::rowwise},
    MakeField("scale", Option::kScale, &QuantSpec::scale),
    MakeField("seed", Option::kStochasticRounding, &QuantSpec::seed),
    MakeField("stochastic_rounding", Option::kStochasticRounding, &QuantSpec::stochastic_rounding),
    MakeField("swizzled", Option::kSwizzled, &QuantSpec::swizzled),
};
static_assert(std::ranges::is_sorted(kFields, {}, &SpecField::key));

struct Word {
  std::string_view text;
  FourOverSix value;
};
constexpr Word kWords[] = {{"mae", FourOverSix::kMeanAbsoluteError},
                           {"mse", FourOverSix::kMeanSquaredError}};

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>  // clang before 17 needs this deduction guide
Overloaded(Visitors...)->Overloaded<Visitors...>;

/// Returns a bool, an integer or a float as a double; nullopt for a word.
std::optional<double> AsNumber(const SpecValue& value) {
  return std::visit(
      Overloaded{[](std::string_view) -> std::optional<double> { return std::nullopt; },
                 [](auto number) -> std::optional<double> { return static_cast<double>(number); }},
      value);
}

bool FlagOf(std::string_view key, const SpecValue& value) {
  const std::optional<double> number = AsNumber(value);
  if (number == 0.0 || number == 1.0) return *number == 1.0;
  throw InvalidArgument(
      fmt::format("quantize: {} must be True or False, got {}", key, PrintSpecValue(value)));
}

float CheckedFloat(std::string_view key, const SpecValue& value) {
  if (const auto* number = std::get_if<float>(&value)) return *number;
  throw InvalidArgument(fmt::format("quantize: {} must be a number, got {}", key,
                                    std::holds_alternative<bool>(value)
                                        ? fmt::format("{}", std::get<bool>(value))
                                        : PrintSpecValue(value)));
}

std::uint64_t IntegerOf(std::string_view key, const SpecValue& value) {
  if (const auto* integer = std::get_if<std::uint64_t>(&value)) return *integer;
  throw InvalidArgument(fmt::format("quantize: {} must be an integer from 0 to 2^64 - 1, got {}",
                                    key, PrintSpecValue(value)));
}

FourOverSix WordOf(std::string_view key, const SpecValue& value) {
  if (const auto* text = std::get_if<std::string_view>(&value)) {
    const auto* word = std::ranges::find(kWords, *text, &Word::text);
    if (word != std::end(kWords)) return word->value;
  }
  throw InvalidArgument(fmt::format("quantize: {} must be 'mae' or 'mse', got '{}'", key,
                                    Shortened(PrintSpecValue(value))));
}

}  // namespace

std::optional<SpecValue> SpecField::Get(const QuantSpec& spec) const {
  using Result = std::optional<SpecValue>;
  return std::visit(
      Overloaded{
          [&](std::optional<bool> QuantSpec::*choice) -> Result {
            return (spec.*choice).value_or((option.bits & spec.scheme->on_by_default.bits) != 0);
          },
          [&](std::optional<float> QuantSpec::*number) -> Result {
            return spec.*number ? Result(*(spec.*number)) : std::nullopt;
          },
          [&](FourOverSix QuantSpec::*word) -> Result {
            const auto* found = std::ranges::find(kWords, spec.*word, &Word::value);
            return found == std::end(kWords) ? std::nullopt : Result(found->text);
          },
          [&](auto plain) -> Result { return spec.*plain; }},
      member);
}

void SpecField::Set(QuantSpec& spec, SpecValue value) const {
  const FloatEnvironment environment;  // keeps a subnormal from comparing equal to 0
  std::visit(
      Overloaded{
          [&](bool QuantSpec::*flag) { spec.*flag = FlagOf(key, value); },
          [&](std::optional<bool> QuantSpec::*choice) { spec.*choice = FlagOf(key, value); },
          [&](float QuantSpec::*number) { spec.*number = CheckedFloat(key, value); },
          [&](std::optional<float> QuantSpec::*number) { spec.*number = CheckedFloat(key, value); },
          [&](std::uint64_t QuantSpec::*integer) { spec.*integer = IntegerOf(key, value); },
          [&](FourOverSix QuantSpec::*word) { spec.*word = WordOf(key, value); }},
      member);
}

SpecValue SpecField::Parse(std::string_view text) const {
  const FloatEnvironment environment;  // from_chars uses the thread's rounding mode
  const auto number = [&](auto parsed, const char* what) -> SpecValue {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, parsed);
    if (error == std::errc{} && stop == end) return parsed;
    throw InvalidArgument(fmt::format("spec: {} must be {}, got '{}'", key, what, Shortened(text)));
  };
  const auto flag = [&]() -> SpecValue {
    if (text == "0" || text == "1") return text == "1";
    throw InvalidArgument(fmt::format("spec: {} must be 0 or 1, got '{}'", key, Shortened(text)));
  };
  return std::visit(Overloaded{[&](bool QuantSpec::*) { return flag(); },
                               [&](std::optional<bool> QuantSpec::*) { return flag(); },
                               [&](std::uint64_t QuantSpec::*) {
                                 return number(std::uint64_t{0}, "an integer from 0 to 2^64 - 1");
                               },
                               [&](FourOverSix QuantSpec::*) -> SpecValue { return text; },
                               [&](auto) { return number(0.0f, "a number that float32 holds"); }},
                    member);
}

bool SpecField::Same(const QuantSpec& a, const QuantSpec& b) const {
  const std::optional<SpecValue> first = Get(a), second = Get(b);
  if (!first || !second) return first.has_value() == second.has_value();
  const auto* x = std::get_if<float>(&*first);
  const auto* y = std::get_if<float>(&*second);
  if (x == nullptr || y == nullptr) return first == second;
  if (std::isnan(*x) && std::isnan(*y)) return std::signbit(*x) == std::signbit(*y);
  return std::bit_cast<std::uint32_t>(*x) == std::bit_cast<std::uint32_t>(*y);
}

std::span<const SpecField> SpecFields() {
  return kFields;
}

const SpecField* FindSpecField(std::string_view key) {
  const auto* found = std::ranges::find(kFields, key, &SpecField::key);
  return found == std::end(kFields) ? nullptr : found;
}

std::string PrintSpecValue(const SpecValue& value) {
  return std::visit(Overloaded{[](bool flag) { return std::string(flag ? "1" : "0"); },
                               [](auto plain) { return fmt::format("{}", plain); }},
                    value);
}

}  // namespace narrowfloat
