// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "narrowfloat/tensor/shortened.h"

namespace narrowfloat::io {

/// Returns the JSON text of a value for a message, shortened as by Shortened().
std::string ShortenedJson(const nlohmann::json& value);

/// Receives the parts of a JSON text in their order, without a tree of them. Only .cc files include
/// this header.
class StrictJsonEvents : private nlohmann::json::json_sax_t {
 public:
  /// Rejects objects and arrays that nest deeper than `max_depth`.
  StrictJsonEvents(const std::string& source, int max_depth)
      : source_(source), max_depth_(max_depth) {}

 protected:
  const std::string& source() const { return source_; }

  /// Returns the number of objects and arrays that are open around the current part.
  int Depth() const { return depth_; }

  /// Receives a member's name. The caller checks that no name is repeated.
  virtual void OnName(std::string& name) = 0;
  virtual void OnText(std::string& text) = 0;

  /// Receives a number, true, false or null.
  virtual void OnOther(const nlohmann::json& value) = 0;

  /// Receives the start of an object or array; Depth() does not count it yet.
  virtual void OnOpen(bool is_array) = 0;

  /// Receives the end of an object, or of an array (OnListEnd); Depth() no longer counts it.
  virtual void OnClose() = 0;
  virtual void OnListEnd() = 0;

 private:
  friend void ReadStrictJson(std::string_view text, std::size_t max_token_bytes,
                             StrictJsonEvents& events);

  bool null() override { return Other(nullptr); }
  bool boolean(bool value) override { return Other(value); }
  bool number_integer(std::int64_t value) override { return Other(value); }
  bool number_unsigned(std::uint64_t value) override { return Other(value); }
  bool number_float(double value, const std::string& /*text*/) override { return Other(value); }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return false; }  // never in text
  bool string(std::string& value) override;
  bool key(std::string& name) override;
  bool start_object(std::size_t /*size*/) override { return Open(false); }
  bool start_array(std::size_t /*size*/) override { return Open(true); }
  bool end_object() override;
  bool end_array() override;
  bool parse_error(std::size_t byte, const std::string& token,
                   const nlohmann::detail::exception& error) override;
  bool Other(const nlohmann::json& value);
  bool Open(bool is_array);

  const std::string& source_;
  int max_depth_, depth_ = 0;
};

/// Parses untrusted JSON and calls `events` for each part.
/// Errors: InvalidArgument "<source>: ..." for text that is not JSON, that nests too deeply, or
/// that has a string, a number or spaces of more than `max_token_bytes`; exceptions of `events`.
void ReadStrictJson(std::string_view text, std::size_t max_token_bytes, StrictJsonEvents& events);

/// Parses untrusted JSON into a tree. Errors: as ReadStrictJson, also for a repeated name within an
/// object, and for more than half a million values.
nlohmann::json ParseStrictJson(const std::string& source, std::string_view text, int max_depth);

/// Parses the JSON of a model's configuration as ParseStrictJson. Also accepts NaN, Infinity and
/// -Infinity as numbers: Python's json module writes them, although JSON does not have them.
nlohmann::json ParsePythonJson(const std::string& source, std::string_view text, int max_depth);

/// Returns a text with a member set, or without it. Changes nothing else: the order of the other
/// members, their spaces and numbers out of every type's range stay. A new member comes last, with
/// the first one's indentation. Requires: ParsePythonJson accepts the text and returns an object.
std::string WithMember(std::string_view text, std::string_view name,
                       const nlohmann::ordered_json& value);
std::string WithoutMember(std::string_view text, std::string_view name);

/// Returns a text without the member `name` of its object `object`; the unchanged text if it has no
/// such object. Requires: as WithMember.
std::string WithoutMember(std::string_view text, std::string_view object, std::string_view name);

}  // namespace narrowfloat::io
