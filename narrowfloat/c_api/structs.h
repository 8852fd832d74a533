// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat::c_api {

/// The largest struct_size that is accepted; a larger one is probably uninitialized memory.
inline constexpr std::size_t kLargestStruct = 4096;

/// Returns the size of the caller's struct, which may be of another version.
/// Errors: InvalidArgument if `given` is null, or if the size is below sizeof(Struct), the first
/// version's, or above kLargestStruct.
template <class Struct>
std::size_t CallerSize(const char* verb, const char* name, const Struct* given) {
  if (given == nullptr) throw InvalidArgument(fmt::format("{}: {} must not be NULL", verb, name));
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size >= sizeof(Struct) && size <= kLargestStruct) return size;
  throw InvalidArgument(fmt::format("{}: struct_size of {} must be from {} to {}, got {}", verb,
                                    name, sizeof(Struct), kLargestStruct, size));
}

/// Returns a copy of struct `index` of the caller's array of structs with `size` bytes each.
/// Errors: Unsupported if a field that this version does not know is not zero.
template <class Struct>
Struct ReadStruct(const char* verb, const char* name, const Struct* given, std::size_t size,
                  std::size_t index = 0) {
  const auto* bytes = reinterpret_cast<const std::byte*>(given) + index * size;
  if (std::any_of(bytes + sizeof(Struct), bytes + size,
                  [](std::byte b) { return b != std::byte{0}; })) {
    throw Unsupported(
        fmt::format("{}: fields of {} that this version does not know must be 0", verb, name));
  }
  Struct copy;
  std::memcpy(&copy, bytes, sizeof copy);
  return copy;
}

}  // namespace narrowfloat::c_api
