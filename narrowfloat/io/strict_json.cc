// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/strict_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Members of an object take about 300 bytes of memory each. The longest lists of modules that are
// not quantized have about 100,000 names.
constexpr std::size_t kMaxValues = std::size_t{1} << 19;
constexpr std::size_t kMaxTokenBytes = std::size_t{16} << 20;

constexpr std::string_view kSpaces = " \t\r\n", kPunctuation = ",:[]{}";

/// Returns the position after the string, number, constant or spaces that begin at `begin`.
std::size_t TokenEnd(std::string_view text, std::size_t begin) {
  if (kPunctuation.find(text[begin]) < kPunctuation.size()) return begin + 1;
  std::size_t end = begin + 1;
  if (kSpaces.find(text[begin]) < kSpaces.size()) {
    end = text.find_first_not_of(kSpaces, begin);
  } else if (text[begin] != '"') {
    end = text.find_first_of(" \t\r\n,:[]{}\"", begin);
  } else {
    while ((end = text.find_first_of("\"\\", end)) < text.size() && text[end] == '\\') end += 2;
    if (end < text.size()) ++end;
  }
  return std::min(end, text.size());
}

/// Rejects tokens that are too long, before the parser copies them twice.
void CheckTokens(const std::string& source, std::string_view text, std::size_t max_bytes) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = std::exchange(at, TokenEnd(text, at));
    if (at - begin <= max_bytes) continue;
    throw InvalidArgument(fmt::format(
        "{}: a JSON string, number or run of spaces must have at most {} bytes, got {} at byte {}",
        source, max_bytes, at - begin, begin));
  }
}

template <class F>
void ForEachToken(std::string_view text, const F& use) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = std::exchange(at, TokenEnd(text, at));
    use(text.substr(begin, at - begin));
  }
}

/// Returns whether a token is a number or a constant. The parser ignores a byte order mark.
bool IsScalar(std::string_view token) {
  return token.front() != '"' && token != "\xEF\xBB\xBF" &&
         kSpaces.find(token.front()) == std::string_view::npos &&
         kPunctuation.find(token.front()) == std::string_view::npos;
}

constexpr struct {
  std::string_view name;
  double value;
} kNonFinite[] = {{"NaN", std::numeric_limits<double>::quiet_NaN()},
                  {"Infinity", std::numeric_limits<double>::infinity()},
                  {"-Infinity", -std::numeric_limits<double>::infinity()}};

/// Numbers that are not finite, by their index among the scalars of a text.
using Numbers = std::map<std::size_t, double>;

/// A text of the same length with zeros instead of such numbers.
struct Finite {
  std::string text;
  Numbers numbers;
};

Finite MakeFinite(std::string_view text) {
  const bool may_have = std::ranges::any_of(kNonFinite, [&](const auto& number) {
    return text.find(number.name) != std::string_view::npos;
  });
  if (!may_have) return {std::string(text), {}};
  Finite finite;
  std::size_t scalars = 0;
  ForEachToken(text, [&](std::string_view token) {
    const std::size_t place = IsScalar(token) ? scalars++ : scalars;
    for (const auto& [name, value] : kNonFinite) {
      if (token != name) continue;
      finite.numbers.emplace(place, value);
      finite.text.append("0").append(name.size() - 1, ' ');
      return;
    }
    finite.text += token;
  });
  return finite;
}

/// Builds the tree during parsing. (The library's own builder with a callback searches an object
/// again for each of its members, which takes minutes for a text of 20 MB.)
class Builder final : public StrictJsonEvents {
 public:
  /// Prepares a tree in which `numbers` replace the scalars at their indices.
  Builder(const std::string& source, int max_depth, Numbers numbers = {})
      : StrictJsonEvents(source, max_depth), numbers_(std::move(numbers)) {}

  json Take() { return std::move(root_); }

 private:
  void OnText(std::string& text) override { Place(std::move(text)); }
  void OnOther(const json& value) override {
    const auto number = numbers_.find(scalars_++);
    Place(number == numbers_.end() ? value : json(number->second));
  }
  void OnOpen(bool is_array) override {
    open_.push_back(Place(is_array ? json::array() : json::object()));
  }
  void OnClose() override { open_.pop_back(); }
  void OnListEnd() override { open_.pop_back(); }

  void OnName(std::string& name) override {
    const auto [member, fresh] = open_.back()->get_ref<json::object_t&>().emplace(name, nullptr);
    if (!fresh) {
      throw InvalidArgument(
          fmt::format("{}: names must be unique, got '{}' twice", source(), Shortened(name)));
    }
    member_ = &member->second;
  }

  /// Adds a value at the current position of the tree and returns its address.
  json* Place(json value) {
    if (++values_ > kMaxValues) {
      throw InvalidArgument(
          fmt::format("{}: JSON must have at most {} values, got more", source(), kMaxValues));
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *member_ = std::move(value);
    return member_;
  }

  Numbers numbers_;
  json root_;
  std::size_t scalars_ = 0, values_ = 0;
  std::vector<json*> open_;  // objects and arrays around the current position
  json* member_ = nullptr;   // member of the innermost object that has a name but no value yet
};

/// A member of an object, and its position in a text: from its name to the end of its value.
struct Member {
  std::string name;
  std::size_t begin, value, end;
};

/// Returns the members of the object in a text. Requires: the text is JSON, but may have the names
/// of numbers that are not finite.
std::vector<Member> MembersOf(std::string_view text) {
  std::vector<Member> members;
  int depth = 0;
  bool in_value = false;
  ForEachToken(text, [&](std::string_view token) {
    const auto begin = static_cast<std::size_t>(token.data() - text.data());
    const char c = token.front();
    if (kSpaces.find(c) < kSpaces.size()) return;
    if (c == '}' || c == ']') --depth;
    if (depth == 1 && (c == ',' || c == ':')) {
      in_value = c == ':';
    } else if (depth > 0 && !in_value) {
      members.push_back({json::parse(token).get<std::string>(), begin, 0, 0});
    } else if (depth > 0) {
      Member& member = members.back();
      if (member.value == 0) member.value = begin;
      member.end = begin + token.size();
    }
    if (c == '{' || c == '[') ++depth;
  });
  return members;
}

std::string Replaced(std::string_view text, std::size_t begin, std::size_t end,
                     std::string_view with) {
  return std::string(text.substr(0, begin)).append(with).append(text.substr(end));
}

/// Prints the value of a member of the outermost object. `indent` is the text before its members'
/// names. Prints one line if that has no line break.
std::string Printed(const ordered_json& value, std::string_view indent) {
  const std::size_t line = indent.rfind('\n');
  if (line == std::string_view::npos) return value.dump();
  const std::string_view step = indent.substr(line + 1);
  const char fill = step.empty() ? ' ' : step.front();
  std::string out;
  for (const char c : value.dump(static_cast<int>(step.size()), fill)) {
    out += c;
    if (c == '\n') out += step;
  }
  return out;
}

}  // namespace

std::string ShortenedJson(const json& value) {
  return Shortened(std::string_view(value.dump(-1, ' ', false, json::error_handler_t::replace)));
}

bool StrictJsonEvents::string(std::string& value) {
  OnText(value);
  return true;
}

bool StrictJsonEvents::key(std::string& name) {
  OnName(name);
  return true;
}

bool StrictJsonEvents::Other(const json& value) {
  OnOther(value);
  return true;
}

bool StrictJsonEvents::Open(bool is_array) {
  if (depth_ == max_depth_) {
    throw InvalidArgument(
        fmt::format("{}: JSON must nest at most {} deep, got more", source_, max_depth_));
  }
  OnOpen(is_array);
  ++depth_;
  return true;
}

bool StrictJsonEvents::end_object() {
  --depth_;
  OnClose();
  return true;
}

bool StrictJsonEvents::end_array() {
  --depth_;
  OnListEnd();
  return true;
}

bool StrictJsonEvents::parse_error(std::size_t byte, const std::string& /*token*/,
                                   const nlohmann::detail::exception& error) {
  constexpr int kNumberTooLarge = 406;
  if (error.id == kNumberTooLarge) {
    throw InvalidArgument(fmt::format(
        "{}: JSON numbers must be in the range of binary64, got a larger one", source_));
  }
  throw InvalidArgument(
      fmt::format("{}: must be JSON, got a syntax error at byte {}", source_, byte));
}

void ReadStrictJson(std::string_view text, std::size_t max_token_bytes, StrictJsonEvents& events) {
  // The parser treats a NUL as the end of the text.
  const std::size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    throw InvalidArgument(
        fmt::format("{}: JSON must have no NUL byte, got one at byte {}", events.source(), nul));
  }
  text = text.substr(0, text.find_last_not_of(kSpaces) + 1);  // most of a header may be padding
  CheckTokens(events.source(), text, max_token_bytes);
  json::sax_parse(text, static_cast<json::json_sax_t*>(&events));
}

json ParseStrictJson(const std::string& source, std::string_view text, int max_depth) {
  Builder builder(source, max_depth);
  ReadStrictJson(text, kMaxTokenBytes, builder);
  return builder.Take();
}

json ParsePythonJson(const std::string& source, std::string_view text, int max_depth) {
  const Finite finite = MakeFinite(text);
  Builder builder(source, max_depth, finite.numbers);
  ReadStrictJson(finite.text, kMaxTokenBytes, builder);
  return builder.Take();
}

std::string WithMember(std::string_view text, std::string_view name, const ordered_json& value) {
  const std::vector<Member> members = MembersOf(text);
  const std::size_t begin = text.find('{') + 1;
  const std::size_t first = members.empty() ? begin : members.front().begin;
  std::string_view indent = members.empty() ? "\n  " : text.substr(begin, first - begin);
  if (indent.empty()) indent = " ";
  const auto at = std::ranges::find(members, name, &Member::name);
  if (at != members.end()) return Replaced(text, at->value, at->end, Printed(value, indent));
  const std::string member = json(name).dump() + ": " + Printed(value, indent);
  if (members.empty()) return Replaced(text, begin, begin, fmt::format("{}{}\n", indent, member));
  const std::size_t end = members.back().end;
  return Replaced(text, end, end, fmt::format(",{}{}", indent, member));
}

std::string WithoutMember(std::string_view text, std::string_view name) {
  const std::vector<Member> members = MembersOf(text);
  const auto at = std::ranges::find(members, name, &Member::name);
  if (at == members.end()) return std::string(text);
  // Removes the comma before the member, too, or the comma after the first member.
  if (at != members.begin()) return Replaced(text, std::prev(at)->end, at->end, "");
  const auto next = std::next(at);
  return Replaced(text, at->begin, next == members.end() ? at->end : next->begin, "");
}

std::string WithoutMember(std::string_view text, std::string_view object, std::string_view name) {
  const std::vector<Member> members = MembersOf(text);
  const auto at = std::ranges::find(members, object, &Member::name);
  if (at == members.end() || text[at->value] != '{') return std::string(text);
  const std::string_view value = text.substr(at->value, at->end - at->value);
  return Replaced(text, at->value, at->end, WithoutMember(value, name));
}

}  // namespace narrowfloat::io
