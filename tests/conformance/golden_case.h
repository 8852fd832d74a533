// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/tensor/quant_spec.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {

/// A tensor of a recorded case. `dtype` is the record's name of the type: fp32, bf16, e4m3, ...
struct GoldenTensor {
  std::string dtype;
  Shape shape;
  std::vector<std::byte> bytes;

  std::size_t ItemBytes() const;
  std::size_t Items() const { return bytes.size() / ItemBytes(); }
  std::uint32_t Bits(std::size_t item) const;
  float Float(std::size_t item) const;    // of an fp32 tensor
  double Double(std::size_t item) const;  // of an fp64 tensor
};

/// A recorded case of tests/golden/: the description in its file, and its tensors.
struct GoldenCase {
  std::string name, op;
  nlohmann::json params;
  std::map<std::string, GoldenTensor> tensors;

  bool Has(const std::string& tensor) const { return tensors.contains(tensor); }
  const GoldenTensor& At(const std::string& tensor) const { return tensors.at(tensor); }
  /// Returns the result of TransformerEngine's kernels: the alternative that is recorded for them
  /// if the references disagree, else the tensor itself.
  const GoldenTensor& Expected(const std::string& tensor) const;
  /// Returns the result of `reference`: its recorded alternative, or the tensor itself without one.
  const GoldenTensor& From(const std::string& reference, const std::string& tensor) const;
};

GoldenCase LoadGolden(const std::filesystem::path& file);

/// Returns the files of a group, sorted.
std::vector<std::filesystem::path> GoldenFiles(std::string_view group);

/// Returns the float tensor `tensor` of the case as an input.
FloatTensor GoldenInput(const GoldenCase& golden, const std::string& tensor = "x");

/// Returns the spec of the case's parameters, without directions.
QuantSpec GoldenSpec(const GoldenCase& golden);

/// Returns true if the case's scales are recorded as [line][block] and stored as [block][line].
bool RecordIsTurned(const GoldenCase& golden);

DType GoldenDType(std::string_view dtype);

/// Returns true if two items of type `dtype` have equal bits or are both NaN. The sign and the
/// payload of a NaN depend on the machine that recorded it.
bool SameItem(std::string_view dtype, std::uint32_t a, std::uint32_t b);

}  // namespace narrowfloat::conformance
