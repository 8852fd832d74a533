// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "narrowfloat/io/shard_index.h"
#include "narrowfloat/tensor/error.h"

/// Checks that a parsed index names no file outside the folder and prints to an equal index.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace narrowfloat;
  try {
    const io::ShardIndex index = io::ParseIndex("i", {reinterpret_cast<const char*>(data), size});
    for (const auto& [file, tensors] : index.tensors) {
      if (file.find('/') != std::string::npos || file == "..") std::abort();
    }
    const io::ShardIndex again = io::ParseIndex("i", io::PrintIndex("i", index));
    if (again.tensors != index.tensors || again.other_metadata != index.other_metadata) {
      std::abort();
    }
  } catch (const InvalidArgument&) {
    return 0;
  }
  return 0;
}
