// SPDX-License-Identifier: Apache-2.0
#include "tools/read_quantized.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "narrowfloat/io/read_convention.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::tools {
namespace {

std::string Known() {
  std::vector<std::string_view> names = {io::kConventionName};
  for (const io::ConventionRow* row : io::Conventions()) names.push_back(row->name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

io::ConventionGuess ReadQuantized(const std::string& verb, io::Checkpoint& in,
                                  const std::string& from) {
  const std::string path = in.path().string();
  io::ConventionGuess guess =
      from.empty() ? io::GuessConvention(in) : io::ConventionGuess{from, "--from"};
  if (guess.name == io::kPlainName) {
    throw InvalidArgument(fmt::format("{}: IN must hold quantized tensors, {} has none ({})", verb,
                                      path, guess.reason));
  }
  if (guess.name == io::kLostMetadataName) {
    throw InvalidArgument(fmt::format("{}: {}: {}", verb, path, guess.reason));
  }
  if (guess.name == io::kConventionName) return guess;
  const io::ConventionRow* row = io::FindConvention(guess.name);
  if (row == nullptr) {
    throw Unsupported(fmt::format("{}: {} is written as '{}' ({}), this build reads {}", verb, path,
                                  guess.name, guess.reason, Known()));
  }
  io::ReadConvention(in, *row);
  return guess;
}

io::Checkpoint OpenGrouped(const std::string& verb, const std::string& path) {
  io::Checkpoint in = io::Checkpoint::Open(path);
  const io::ConventionGuess guess = io::GuessConvention(in);
  if (guess.name != io::kPlainName) ReadQuantized(verb, in, guess.name);
  return in;
}

}  // namespace narrowfloat::tools
