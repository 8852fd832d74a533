// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {

std::span<const ConventionRow* const> Conventions() {
  static constexpr const ConventionRow* kRows[] = {
      &kDeepSeek, &kMxfp8,  &kDeepSeekV4, &kFbgemm,  &kCompressedTensors,
      &kModelOpt, &kGptOss, &kQuark,      &kComfyUi, &kTorchAo};
  return kRows;
}

const ConventionRow* FindConvention(std::string_view name) {
  for (const ConventionRow* row : Conventions()) {
    if (row->name == name || std::ranges::find(row->other_names, name) != row->other_names.end()) {
      return row;
    }
  }
  return nullptr;
}

}  // namespace narrowfloat::io
