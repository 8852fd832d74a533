// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "narrowfloat/c_api.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::c_api {

/// The largest struct_size that is accepted; a larger one is probably uninitialized memory.
inline constexpr std::size_t kLargestStruct = 4096;

/// The size of a struct in the first version that has it: the end of its last field then. A field
/// that a later version adds does not change it.
template <class Struct>
inline constexpr std::size_t kFirstSize = 0;
template <>
inline constexpr std::size_t kFirstSize<nf_tensor> = offsetof(nf_tensor, dtype) +
                                                     sizeof(nf_tensor::dtype);
template <>
inline constexpr std::size_t kFirstSize<nf_buffer_plan> = offsetof(nf_buffer_plan, bytes) +
                                                          sizeof(nf_buffer_plan::bytes);
template <>
inline constexpr std::size_t kFirstSize<nf_buffer> = offsetof(nf_buffer, reserved) +
                                                     sizeof(nf_buffer::reserved);
template <>
inline constexpr std::size_t kFirstSize<nf_execution> = offsetof(nf_execution, reserved) +
                                                        sizeof(nf_execution::reserved);

/// Returns the size of the caller's struct, which may be of another version.
/// Errors: InvalidArgument if `given` is null, or if the size is below kFirstSize or above
/// kLargestStruct.
template <class Struct>
std::size_t CallerSize(const char* verb, const char* name, const Struct* given) {
  if (given == nullptr) throw InvalidArgument(fmt::format("{}: {} must not be NULL", verb, name));
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  static_assert(kFirstSize<Struct> > 0, "a struct needs its size in the first version");
  if (size >= kFirstSize<Struct> && size <= kLargestStruct) return size;
  throw InvalidArgument(fmt::format("{}: struct_size of {} must be from {} to {}, got {}", verb,
                                    name, kFirstSize<Struct>, kLargestStruct, size));
}

/// Returns a copy of struct `index` of the caller's array of structs with `size` bytes each. Fields
/// that the caller's version does not have are zero.
/// Errors: Unsupported if a field that this version does not know is not zero.
template <class Struct>
Struct ReadStruct(const char* verb, const char* name, const Struct* given, std::size_t size,
                  std::size_t index = 0) {
  const auto* bytes = reinterpret_cast<const std::byte*>(given) + index * size;
  const std::size_t known = std::min(size, sizeof(Struct));
  if (std::any_of(bytes + known, bytes + size, [](std::byte b) { return b != std::byte{0}; })) {
    throw Unsupported(
        fmt::format("{}: fields of {} that this version does not know must be 0", verb, name));
  }
  Struct copy{};
  std::memcpy(&copy, bytes, known);
  return copy;
}

/// Stores a struct in the caller's, which has `size` bytes: the fields that both versions have.
template <class Struct>
void StoreStruct(const Struct& from, std::size_t size, std::byte* to) {
  std::memcpy(to, &from, std::min(size, sizeof from));
}

}  // namespace narrowfloat::c_api
