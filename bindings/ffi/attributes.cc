// SPDX-License-Identifier: Apache-2.0
#include "bindings/ffi/attributes.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/types/float8_tensor.h"
#include "narrowfloat/types/mxfp8_tensor.h"
#include "narrowfloat/types/nvfp4_tensor.h"

namespace narrowfloat::xla_ffi {
namespace {

template <class Enum, std::size_t kCount>
void CheckEnum(const char* verb, const char* what, Enum value,
               const NamedValue<Enum> (&values)[kCount]) {
  if (std::ranges::find(values, value, &NamedValue<Enum>::value) != std::end(values)) return;
  throw InvalidArgument(fmt::format("{}: {} must be a number from 0 to {}, got {}", verb, what,
                                    kCount - 1, static_cast<std::int64_t>(value)));
}

bool Covers(ScalingMode mode, const SchemeInfo& scheme) {
  const bool tiles = scheme.block.rows > 1;
  switch (mode) {
    case ScalingMode::NO_SCALING:
      return false;
    case ScalingMode::DELAYED_TENSOR_SCALING:
    case ScalingMode::CURRENT_TENSOR_SCALING:
      return kFloat8Family.contains(scheme);
    case ScalingMode::MXFP8_1D_SCALING:
      return kMxfp8Family.contains(scheme) && !tiles;
    case ScalingMode::NVFP4_1D_SCALING:
      return kNvfp4Family.contains(scheme) && !tiles;
    case ScalingMode::NVFP4_2D_SCALING:
      return kNvfp4Family.contains(scheme) && tiles;
  }
  return false;
}

std::string_view NameOf(ScalingMode mode) {
  return std::ranges::find(kScalingModes, mode, &NamedValue<ScalingMode>::value)->name;
}

}  // namespace

std::vector<const SchemeInfo*> SchemesOf(ScalingMode mode) {
  CheckEnum("quantize", "scaling_mode", mode, kScalingModes);
  std::vector<const SchemeInfo*> schemes;
  for (const SchemeInfo& scheme : kSchemes) {
    if (Covers(mode, scheme)) schemes.push_back(&scheme);
  }
  return schemes;
}

const SchemeInfo& SchemeOf(const char* verb, ScalingMode mode, std::string_view element) {
  CheckEnum(verb, "scaling_mode", mode, kScalingModes);
  std::string elements;
  for (const SchemeInfo* scheme : SchemesOf(mode)) {
    if (scheme->element == element) return *scheme;
    elements += fmt::format("{}{}", elements.empty() ? "" : " or ", scheme->element);
  }
  if (elements.empty()) {
    throw InvalidArgument(
        fmt::format("{}: the scaling mode must quantize, got {}", verb, NameOf(mode)));
  }
  throw InvalidArgument(
      fmt::format("{}: {} needs {} codes, got {}", verb, NameOf(mode), elements, element));
}

QuantSpec MakeSpec(const char* verb, const QuantizeAttributes& attributes,
                   std::string_view element) {
  CheckEnum(verb, "q_layout", attributes.q_layout, kQuantizeLayouts);
  QuantSpec spec{.scheme = &SchemeOf(verb, attributes.scaling_mode, element)};
  spec.rowwise = attributes.q_layout != QuantizeLayout::COLWISE;
  spec.columnwise = attributes.q_layout != QuantizeLayout::ROWWISE;
  spec.stochastic_rounding = attributes.stochastic_rounding;
  spec.rht = attributes.use_rht;
  ValidateSpec(spec);
  return spec;
}

std::string_view ScaleDType(const SchemeInfo& scheme) {
  switch (scheme.layout.scale_type) {
    case ScaleType::kFloat32:
      return "float32";
    case ScaleType::kE8M0:
      return "float8_e8m0fnu";
    case ScaleType::kE4M3:
      return "float8_e4m3fn";
  }
  return {};
}

MatrixShape SplitShape(const char* verb, const Shape& shape, std::int64_t flatten_axis) {
  const auto rank = static_cast<std::int64_t>(shape.size());
  const std::int64_t axis = flatten_axis < 0 ? flatten_axis + rank : flatten_axis;
  if (axis <= 0 || axis >= rank) {
    throw InvalidArgument(
        fmt::format("{}: flatten_axis must split the dimensions in two, got {} for shape {}", verb,
                    flatten_axis, ShapeText(shape)));
  }
  FlattenShape(shape);  // throws if the shape has too many elements
  const auto product = [](auto begin, auto end) {
    return static_cast<std::size_t>(
        std::accumulate(begin, end, std::int64_t{1}, std::multiplies<>()));
  };
  return {product(shape.begin(), shape.begin() + axis), product(shape.begin() + axis, shape.end())};
}

WorkspaceSize GetDBiasQuantizeWorkspaceSizes(std::size_t batch_size, std::size_t hidden_size,
                                             CoreDType /*in_dtype*/, CoreDType /*out_dtype*/,
                                             CoreDType /*scale_dtype*/,
                                             JAXX_Scaling_Mode /*scaling_mode*/,
                                             JAXX_Quantize_Layout /*q_layout*/) {
  const MatrixShape workspace = FlattenShape(DbiasWorkspaceShape(
      {static_cast<std::int64_t>(batch_size), static_cast<std::int64_t>(hidden_size)}));
  if (workspace.Size() == 0) return {{1}, CoreDType::kFloat32};
  return {{workspace.rows, workspace.cols}, CoreDType::kFloat32};
}

}  // namespace narrowfloat::xla_ffi
