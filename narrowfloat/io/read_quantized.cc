// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/read_quantized.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "narrowfloat/io/read_convention.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

std::string Known() {
  std::vector<std::string_view> names = {kConventionName};
  for (const ConventionRow* row : Conventions()) names.push_back(row->name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

ConventionGuess ReadQuantized(const std::string& verb, Checkpoint& in, const std::string& from) {
  const std::string path = in.path().string();
  ConventionGuess guess =
      from.empty() ? GuessConvention(in) : ConventionGuess{from, "as asked for"};
  if (guess.name == kPlainName) {
    throw InvalidArgument(fmt::format("{}: IN must hold quantized tensors, {} has none ({})", verb,
                                      path, guess.reason));
  }
  if (guess.name == kLostMetadataName) {
    throw InvalidArgument(fmt::format("{}: {}: {}", verb, path, guess.reason));
  }
  if (guess.name == kConventionName) return guess;
  const ConventionRow* row = FindConvention(guess.name);
  if (row == nullptr) {
    throw Unsupported(fmt::format("{}: {} is written as '{}' ({}), this build reads {}", verb, path,
                                  guess.name, guess.reason, Known()));
  }
  ReadConvention(in, *row);
  return guess;
}

Checkpoint OpenGrouped(const std::string& verb, const std::string& path) {
  Checkpoint in = Checkpoint::Open(path);
  const ConventionGuess guess = GuessConvention(in);
  if (guess.name != kPlainName) ReadQuantized(verb, in, guess.name);
  return in;
}

}  // namespace narrowfloat::io
