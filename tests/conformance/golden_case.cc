// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/golden_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "tests/conformance/reference_codec.h"

namespace narrowfloat::conformance {
namespace {

/// A type's name in records, the name of its ReferenceCodec ("" without one), and its size.
struct TypeName {
  std::string_view recorded, format;
  std::size_t bytes;
};
constexpr TypeName kTypes[] = {
    {"fp32", "", 4},     {"bf16", "bfloat16", 2}, {"fp16", "float16", 2},
    {"e4m3", "e4m3", 1}, {"e5m2", "e5m2", 1},     {"e2m1", "e2m1", 1},
    {"e8m0", "", 1},     {"e2m1x2", "", 1},       {"fp64", "", 8},
};

const TypeName& TypeOf(std::string_view dtype) {
  const auto* found = std::ranges::find(kTypes, dtype, &TypeName::recorded);
  if (found == std::end(kTypes))
    throw std::runtime_error(fmt::format("golden: unknown dtype '{}'", dtype));
  return *found;
}

}  // namespace

std::size_t GoldenTensor::ItemBytes() const {
  return TypeOf(dtype).bytes;
}

std::uint32_t GoldenTensor::Bits(std::size_t item) const {
  std::uint32_t bits = 0;
  std::memcpy(&bits, bytes.data() + item * ItemBytes(), ItemBytes());
  return bits;
}

float GoldenTensor::Float(std::size_t item) const {
  return std::bit_cast<float>(Bits(item));
}

double GoldenTensor::Double(std::size_t item) const {
  double value = 0;
  std::memcpy(&value, bytes.data() + item * sizeof value, sizeof value);
  return value;
}

const GoldenTensor& GoldenCase::Expected(const std::string& tensor) const {
  for (const char* kernel : {"current_scaling", "blockwise", "nvfp4"}) {
    const auto found = tensors.find(fmt::format("alt.kernel.{}.{}", kernel, tensor));
    if (found != tensors.end()) return found->second;
  }
  return tensors.at(tensor);
}

const GoldenTensor& GoldenCase::From(const std::string& reference,
                                     const std::string& tensor) const {
  const auto alternative = tensors.find("alt." + reference + "." + tensor);
  return alternative != tensors.end() ? alternative->second : tensors.at(tensor);
}

GoldenCase LoadGolden(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(stream), {}};
  std::uint64_t header_bytes = 0;
  if (content.size() < sizeof header_bytes)
    throw std::runtime_error("golden: cannot read " + file.string());
  std::memcpy(&header_bytes, content.data(), sizeof header_bytes);
  const auto header = nlohmann::json::parse(content.substr(sizeof header_bytes, header_bytes));
  const std::string data = content.substr(sizeof header_bytes + header_bytes);
  const auto meta = nlohmann::json::parse(header.at("__metadata__").at("case").get<std::string>());

  GoldenCase golden{meta.at("case"), meta.at("op"), meta.at("params"), {}};
  for (const auto& [name, tensor] : meta.at("tensors").items()) {
    GoldenTensor loaded{tensor.at("dtype"), tensor.at("shape").get<Shape>(), {}};
    const auto offsets = header.at(name).at("data_offsets").get<std::vector<std::size_t>>();
    const std::string bytes = data.substr(offsets.at(0), offsets.at(1) - offsets.at(0));
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
    loaded.bytes.assign(first, first + bytes.size());
    golden.tensors.emplace(name, std::move(loaded));
  }
  return golden;
}

std::vector<std::filesystem::path> GoldenFiles(std::string_view group) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(NF_GOLDEN_DIR) / group)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

DType GoldenDType(std::string_view dtype) {
  if (dtype == "fp32") return DType::kFloat32;
  return dtype == "fp16" ? DType::kFloat16 : DType::kBFloat16;
}

FloatTensor GoldenInput(const GoldenCase& golden, const std::string& tensor) {
  const GoldenTensor& recorded = golden.At(tensor);
  FloatTensor input(GoldenDType(recorded.dtype), recorded.shape);
  for (std::size_t i = 0; i < input.size(); ++i) input.SetBits(i, recorded.Bits(i));
  return input;
}

namespace {

QuantSpec Nvfp4Spec(const nlohmann::json& params) {
  const bool tiles = params.value("tile", nlohmann::json::array({1, 16}))[0] == 16;
  QuantSpec spec{.scheme = &FindScheme(tiles ? "nvfp4_2d" : "nvfp4")};
  spec.rht = params.value("with_rht", false);
  if (spec.rht) spec.rht_sign_mask = params.at("rht_sign_mask").get<std::uint64_t>();
  spec.row_scaled = params.value("row_scaled", false);
  spec.e4m3_max = params.value("e4m3_max", 448.0f);
  if (params.value("use_4over6", false)) {
    spec.four_over_six = params.at("err_mode") == "MAE" ? FourOverSix::kMeanAbsoluteError
                                                        : FourOverSix::kMeanSquaredError;
    spec.four_over_six_fast_error = params.at("err_use_fast_math").get<bool>();
  }
  return spec;
}

}  // namespace

QuantSpec GoldenSpec(const GoldenCase& golden) {
  const nlohmann::json& params = golden.params;
  const std::string mode = params.at("mode");
  std::string prefix = mode.starts_with("fp8_") ? "fp8" : mode;
  if (mode == "fp8_blockwise_1d") prefix = "fp8_block1x128";
  if (mode == "fp8_blockwise_2d") prefix = "fp8_block128x128";
  if (mode == "nvfp4") return Nvfp4Spec(params);
  if (mode == "mxfp4") return {.scheme = &FindScheme(mode)};
  QuantSpec spec{.scheme = &FindScheme(prefix + "_" + params.at("q_dtype").get<std::string>())};
  if (params.contains("scale")) spec.scale = params.at("scale").get<float>();
  spec.amax_epsilon = params.value("amax_epsilon", 0.0f);
  if (params.contains("force_pow_2_scales"))
    spec.force_pow_2_scales = params.at("force_pow_2_scales").get<bool>();
  return spec;
}

bool RecordIsTurned(const GoldenCase& golden) {
  return golden.params.at("mode") == "fp8_blockwise_1d";
}

bool SameItem(std::string_view dtype, std::uint32_t a, std::uint32_t b) {
  if (a == b) return true;
  if (dtype == "fp32")
    return std::isnan(std::bit_cast<float>(a)) && std::isnan(std::bit_cast<float>(b));
  const std::string_view format = TypeOf(dtype).format;
  return !format.empty() && ReferenceCodecOf(format).SameCode(a, b);
}

}  // namespace narrowfloat::conformance
