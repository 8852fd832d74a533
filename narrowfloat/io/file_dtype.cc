// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/file_dtype.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace narrowfloat::io {
namespace {

constexpr FileDType kOfDType[] = {FileDType::kF32, FileDType::kF16, FileDType::kBF16,
                                  FileDType::kU8};

}  // namespace

std::optional<FileDType> FindFileDType(std::string_view name) {
  const auto* found = std::ranges::find(kFileDTypes, name, &FileDTypeInfo::name);
  if (found == kFileDTypes.end()) return std::nullopt;
  return static_cast<FileDType>(found - kFileDTypes.begin());
}

std::optional<DType> WideFloat(FileDType dtype) {
  for (std::size_t i = 0; i < kFloatTypeCount; ++i) {
    if (kOfDType[i] == dtype) return static_cast<DType>(i);
  }
  return std::nullopt;
}

FileDType FileDTypeOf(DType dtype) {
  return kOfDType[static_cast<std::size_t>(dtype)];
}

FileDType FileDTypeOfCodes(const SchemeInfo& scheme) {
  std::string name = "F8_";
  for (const char c : scheme.element) {
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return FindFileDType(name).value_or(FileDType::kU8);
}

FileDType FileDTypeOfScales(ScaleType type) {
  switch (type) {
    case ScaleType::kFloat32:
      return FileDType::kF32;
    case ScaleType::kE8M0:
      return FileDType::kF8E8M0;
    case ScaleType::kE4M3:
      break;
  }
  return FileDType::kF8E4M3;
}

}  // namespace narrowfloat::io
