// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/strict_json.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using nlohmann::json;

/// Builds the value while the parser goes, and stops it where the text breaks a rule that plain
/// JSON does not have. (The library's own builder with a callback looks through an object again
/// for each of its members, which takes minutes for a header of 20 MB.)
class Builder final : public json::json_sax_t {
 public:
  Builder(const std::string& source, int max_depth)
      : source_(source), max_depth_(static_cast<std::size_t>(max_depth)) {}

  json Take() { return std::move(root_); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(std::int64_t value) override { return Add(value); }
  bool number_unsigned(std::uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string& /*text*/) override { return Add(value); }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(json::binary_t& /*value*/) override { return false; }  // never in text
  bool start_object(std::size_t /*size*/) override { return Open(json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t /*size*/) override { return Open(json::array()); }
  bool end_array() override { return Close(); }

  bool key(std::string& name) override {
    const auto [member, fresh] = open_.back()->get_ref<json::object_t&>().emplace(name, nullptr);
    if (!fresh) {
      throw InvalidArgument(
          fmt::format("{}: names must stand once, '{}' is repeated", source_, name));
    }
    member_ = &member->second;
    return true;
  }

  bool parse_error(std::size_t byte, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberTooLarge = 406;
    if (error.id == kNumberTooLarge) {
      throw InvalidArgument(
          fmt::format("{}: JSON numbers must fit into 64 bits, got a larger one", source_));
    }
    throw InvalidArgument(
        fmt::format("{}: must be JSON text, it is wrong at byte {}", source_, byte));
  }

 private:
  /// Puts a value where the text has it, and says where that is.
  json* Place(json value) {
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

  bool Add(json value) {
    Place(std::move(value));
    return true;
  }

  bool Open(json value) {
    if (open_.size() == max_depth_) {
      throw InvalidArgument(
          fmt::format("{}: JSON must nest at most {} deep, got more", source_, max_depth_));
    }
    open_.push_back(Place(std::move(value)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  const std::string& source_;
  std::size_t max_depth_;
  json root_;
  std::vector<json*> open_;  // objects and arrays around the place we are at
  json* member_ = nullptr;   // of the innermost object, named and still without its value
};

}  // namespace

json ParseStrictJson(const std::string& source, std::string_view text, int max_depth) {
  // The parser takes a NUL for the end of the text.
  const std::size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    throw InvalidArgument(
        fmt::format("{}: JSON must have no NUL byte, got one at byte {}", source, nul));
  }
  Builder builder(source, max_depth);
  json::sax_parse(text, &builder);
  return builder.Take();
}

}  // namespace narrowfloat::io
