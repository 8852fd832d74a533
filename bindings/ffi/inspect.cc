// SPDX-License-Identifier: Apache-2.0
// te_inspect_ffi: writes an array and its statistics to files of the working folder.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/ffi/buffers.h"
#include "bindings/ffi/decoding.h"
#include "bindings/ffi/execution.h"
#include "narrowfloat/io/file.h"

namespace narrowfloat::xla_ffi {
namespace {

constexpr const char* kVerb = "inspect";

/// Statistics of an array, as in the files and in the line on stdout.
struct Inspected {
  std::string_view name;
  std::int32_t device;
  std::string shape;
  int dtype;
  float min, max, mean, std;
};

/// Replaces characters that are unsafe in file names, such as folder separators.
std::string FileNamePart(std::string_view name) {
  const auto is_kept = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  std::string part(name);
  std::ranges::replace_if(
      part, [&](char c) { return !is_kept(c); }, '_');
  return part.empty() ? "anon" : part;
}

/// Returns text as a string of JSON. Bytes above ASCII are kept.
std::string JsonText(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      json += c;
    }
  }
  return json + '"';
}

/// Returns a number with six digits. JSON has no NaN and infinities; these are Python's names.
std::string JsonNumber(float value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{:g}", value);
}

/// Writes a file, completely or not at all. Errors: as io::AtomicFile.
void WriteFile(const std::string& path, std::string_view bytes) {
  io::AtomicFile file(path);
  file.Write(0, std::as_bytes(std::span(bytes)));
  file.Commit();
}

/// Writes both files and a line on stdout, with TransformerEngine's names and fields.
void Dump(const Inspected& array, std::string_view bytes) {
  const std::string stem =
      fmt::format("my_tensor_gpu{}_{}", array.device, FileNamePart(array.name));
  WriteFile(stem + ".bin", bytes);
  WriteFile(stem + "_meta.json",
            fmt::format(R"({{"name": {}, "shape": [{}], "dtype": {}, "min": {}, "max": {}, )"
                        R"("mean": {}, "std": {}}})",
                        JsonText(array.name), array.shape, array.dtype, JsonNumber(array.min),
                        JsonNumber(array.max), JsonNumber(array.mean), JsonNumber(array.std)));
  const std::string line = fmt::format(
      "[gpu{} {}]: written to {}.bin (shape: [{}], dtype: {}, min: {:f}, max: {:f}, mean: {:f}, "
      "std: {:f})\n",
      array.device, array.name, stem, array.shape, array.dtype, array.min, array.max, array.mean,
      array.std);
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

ffi::Error InspectFFI(std::int32_t device, ffi::AnyBuffer input, ffi::AnyBuffer min,
                      ffi::AnyBuffer max, ffi::AnyBuffer mean, ffi::AnyBuffer std,
                      ffi::Result<ffi::AnyBuffer> output, std::string_view name) {
  return Guard([&] {
    const auto dims = input.dimensions();
    const Inspected array{.name = name,
                          .device = device,
                          .shape = fmt::format("{}", fmt::join(dims.begin(), dims.end(), ", ")),
                          .dtype = static_cast<int>(input.element_type()),
                          .min = *Floats({kVerb, "min"}, min, 1),
                          .max = *Floats({kVerb, "max"}, max, 1),
                          .mean = *Floats({kVerb, "mean"}, mean, 1),
                          .std = *Floats({kVerb, "std"}, std, 1)};
    CheckDType({kVerb, "the output"}, *output, input.element_type());
    CheckCount({kVerb, "the output"}, *output, input.element_count());
    const std::size_t count = BytesOf(input);
    Dump(array, {static_cast<const char*>(input.untyped_data()), count});
    if (output->untyped_data() != input.untyped_data() && count > 0) {
      std::memcpy(output->untyped_data(), input.untyped_data(), count);
    }
  });
}

}  // namespace

NF_EXPORT_HANDLER(te_inspect_ffi, InspectFFI,
                  ffi::Ffi::Bind()
                      .Ctx<ffi::DeviceOrdinal>()
                      .Arg<ffi::AnyBuffer>()  // input
                      .Arg<ffi::AnyBuffer>()  // min
                      .Arg<ffi::AnyBuffer>()  // max
                      .Arg<ffi::AnyBuffer>()  // mean
                      .Arg<ffi::AnyBuffer>()  // std
                      .Ret<ffi::AnyBuffer>()  // output, the memory of the input
                      .Attr<std::string_view>("name"));

}  // namespace narrowfloat::xla_ffi
