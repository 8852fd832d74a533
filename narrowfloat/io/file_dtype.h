// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "narrowfloat/schemes/registry.h"
#include "narrowfloat/tensor/dtype.h"

namespace narrowfloat::io {

/// Element types of safetensors headers, in the reference writer's order: a file's tensors are
/// sorted by it, descending, so that a mixed file stays aligned.
enum class FileDType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

struct FileDTypeInfo {
  std::string_view name;
  std::uint64_t bits;  // of one element; elements narrower than a byte are packed
};

/// The types' names and bits, indexed by FileDType.
inline constexpr auto kFileDTypes = std::to_array<FileDTypeInfo>({
    {"BOOL", 8},         // a byte each
    {"F4", 4},           // E2M1, two in a byte
    {"F6_E2M3", 6},      // four in three bytes
    {"F6_E3M2", 6},      //
    {"U8", 8},           //
    {"I8", 8},           //
    {"F8_E5M2", 8},      //
    {"F8_E4M3", 8},      // without infinity: NaN at 0x7F and 0xFF
    {"F8_E8M0", 8},      //
    {"F8_E4M3FNUZ", 8},  //
    {"F8_E5M2FNUZ", 8},  //
    {"I16", 16},         //
    {"U16", 16},         //
    {"F16", 16},         //
    {"BF16", 16},        //
    {"I32", 32},         //
    {"U32", 32},         //
    {"F32", 32},         //
    {"C64", 64},         // two F32
    {"F64", 64},         //
    {"I64", 64},         //
    {"U64", 64},         //
});
static_assert(kFileDTypes.size() == static_cast<std::size_t>(FileDType::kU64) + 1);

constexpr const FileDTypeInfo& Info(FileDType dtype) {
  return kFileDTypes[static_cast<std::size_t>(dtype)];
}

/// Returns whether a type is a float of at most 8 bits, as codes and scales are.
constexpr bool IsNarrowFloat(FileDType dtype) {
  return Info(dtype).bits <= 8 && Info(dtype).name.front() == 'F';
}

/// Returns whether a type is E4M3 or E5M2.
constexpr bool IsFp8(FileDType dtype) {
  return dtype == FileDType::kF8E4M3 || dtype == FileDType::kF8E5M2;
}

/// Returns the type of that name, or nullopt.
std::optional<FileDType> FindFileDType(std::string_view name);

/// Returns the float type of a plain tensor that can be quantized; nullopt for other types.
std::optional<DType> WideFloat(FileDType dtype);

/// Returns the file's type for a buffer's type.
FileDType FileDTypeOf(DType dtype);

/// Returns the file's type of a scheme's codes: their format's type; U8 for packed codes.
FileDType FileDTypeOfCodes(const SchemeInfo& scheme);

/// Returns the file's type of a scheme's scales.
FileDType FileDTypeOfScales(ScaleType type);

}  // namespace narrowfloat::io
