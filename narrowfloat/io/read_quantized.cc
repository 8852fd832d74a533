// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/read_quantized.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/io/read_convention.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/shortened.h"

namespace narrowfloat::io {
namespace {

/// Returns the convention named by a caller, unless the checkpoint has lost metadata.
DetectedConvention NamedBy(const std::string& operation, const Checkpoint& in,
                           const std::string& from) {
  CheckIsConvention(operation, from, ReadConventions());
  if (const auto lost = FindLostMetadata(in)) return *lost;
  return {from, "named by the caller"};
}

}  // namespace

DetectedConvention ReadAny(const std::string& operation, Checkpoint& in, const std::string& from) {
  const std::string path = in.path().string();
  DetectedConvention found = from.empty() ? DetectConvention(in) : NamedBy(operation, in, from);
  if (found.detection == Detection::kPlain || found.name == kConventionName) return found;
  if (found.detection == Detection::kLostMetadata) {
    throw InvalidArgument(fmt::format("{}: {}: {}", operation, path, found.reason));
  }
  if (found.detection == Detection::kAmbiguous) {
    throw AmbiguousConvention(fmt::format("{}: {}: {}; --from (in Python, from_=) must name one",
                                          operation, path, found.reason));
  }
  const ConventionRow* row = FindConvention(found.name);
  if (row == nullptr) {
    throw Unsupported(fmt::format("{}: {} is written as '{}' ({}), this build reads {}{}{}",
                                  operation, path, Shortened(found.name), found.reason,
                                  fmt::join(ReadConventions(), ", "),
                                  found.stale.empty() ? "" : "; ", found.stale));
  }
  ReadConvention(in, *row, from.empty() ? found.reason : "");
  return found;
}

DetectedConvention ReadQuantized(const std::string& operation, Checkpoint& in,
                                 const std::string& from) {
  DetectedConvention found = ReadAny(operation, in, from);
  if (!found.stale.empty()) {
    throw InvalidArgument(fmt::format("{}: IN must hold quantized tensors, {} has none: {}",
                                      operation, in.path().string(), found.stale));
  }
  if (found.detection != Detection::kPlain) return found;
  throw InvalidArgument(fmt::format("{}: IN must hold quantized tensors, {} has none ({})",
                                    operation, in.path().string(), found.reason));
}

}  // namespace narrowfloat::io
