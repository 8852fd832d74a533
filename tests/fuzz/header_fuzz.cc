// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "narrowfloat/io/convention.h"
#include "narrowfloat/io/safetensors_header.h"
#include "narrowfloat/tensor/error.h"

/// Parses the text after the first two bytes, which are the number of data bytes behind the header.
/// Checks that an accepted header prints to an equal one, and that its records plan without an
/// overflow.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace narrowfloat;
  if (size < 2) return 0;
  const std::uint64_t data_bytes = static_cast<std::uint64_t>(data[0] | data[1] << 8);
  const std::string_view text(reinterpret_cast<const char*>(data + 2), size - 2);
  try {
    const io::Header header = io::ParseHeader("f", text, data_bytes);
    if (header.DataBytes() != data_bytes) std::abort();
    const std::string printed = io::PrintHeader("f", header);
    const auto again = std::string_view(printed).substr(io::kHeaderLengthBytes);
    if (!(io::ParseHeader("f", again, data_bytes) == header)) std::abort();
    io::GroupTensors("f", header);
  } catch (const InvalidArgument&) {
    return 0;
  }
  return 0;
}
