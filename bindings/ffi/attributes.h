// SPDX-License-Identifier: Apache-2.0
// Values that JAX and the handlers exchange besides buffers, and their meaning here.
// Does not depend on XLA, so that tracing calls the same functions as the handlers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "narrowfloat/tensor/element_type.h"
#include "narrowfloat/tensor/quant_spec.h"
#include "narrowfloat/tensor/shape.h"

// Names and numbers are those of TransformerEngine's JAX extension; compiled programs store them as
// attributes.
enum class JAXX_Scaling_Mode : std::int64_t {
  NO_SCALING = 0,
  DELAYED_TENSOR_SCALING = 1,
  MXFP8_1D_SCALING = 2,
  CURRENT_TENSOR_SCALING = 3,
  NVFP4_1D_SCALING = 4,
  NVFP4_2D_SCALING = 5,
};
enum class JAXX_Quantize_Layout : std::int64_t { ROWWISE = 0, COLWISE = 1, ROWWISE_COLWISE = 2 };

namespace narrowfloat::xla_ffi {

using ScalingMode = JAXX_Scaling_Mode;
using QuantizeLayout = JAXX_Quantize_Layout;

template <class Enum>
struct NamedValue {
  std::string_view name;
  Enum value;
};
inline constexpr NamedValue<ScalingMode> kScalingModes[] = {
    {"NO_SCALING", ScalingMode::NO_SCALING},
    {"DELAYED_TENSOR_SCALING", ScalingMode::DELAYED_TENSOR_SCALING},
    {"MXFP8_1D_SCALING", ScalingMode::MXFP8_1D_SCALING},
    {"CURRENT_TENSOR_SCALING", ScalingMode::CURRENT_TENSOR_SCALING},
    {"NVFP4_1D_SCALING", ScalingMode::NVFP4_1D_SCALING},
    {"NVFP4_2D_SCALING", ScalingMode::NVFP4_2D_SCALING},
};
inline constexpr NamedValue<QuantizeLayout> kQuantizeLayouts[] = {
    {"ROWWISE", QuantizeLayout::ROWWISE},
    {"COLWISE", QuantizeLayout::COLWISE},
    {"ROWWISE_COLWISE", QuantizeLayout::ROWWISE_COLWISE},
};

/// Returns the schemes of a mode, one per element format; an empty vector for NO_SCALING.
/// Errors: InvalidArgument if `mode` is not in kScalingModes.
std::vector<const SchemeInfo*> SchemesOf(ScalingMode mode);

/// Returns the mode's scheme with that element format.
/// Errors: InvalidArgument naming the formats of the mode; `verb` begins the message.
const SchemeInfo& SchemeOf(const char* verb, ScalingMode mode, std::string_view element);

/// Attributes of a call of a quantizing handler.
struct QuantizeAttributes {
  ScalingMode scaling_mode;
  QuantizeLayout q_layout;
  bool stochastic_rounding = false;
  bool use_rht = false;
};

/// Returns the spec of the attributes and the codes' element format; does not set the numbers that
/// are operands (scale, amax, seed, ...).
/// Errors: InvalidArgument if a value is not in its enumeration or options exclude each other.
QuantSpec MakeSpec(const char* verb, const QuantizeAttributes& attributes,
                   std::string_view element);

/// Returns the dtype of a scheme's stored scales: "float32", "float8_e8m0fnu" or "float8_e4m3fn".
std::string_view ScaleDType(const SchemeInfo& scheme);

/// Returns the rows and columns of a tensor. Columns are the dimensions from `flatten_axis` on.
/// Negative axes count from the end. Errors: InvalidArgument unless 0 < flatten_axis < rank.
MatrixShape SplitShape(const char* verb, const Shape& shape, std::int64_t flatten_axis);

/// Numbers of dtypes in TransformerEngine's core.
enum class CoreDType : std::int64_t {
  kByte = 0,
  kInt16 = 1,
  kInt32 = 2,
  kInt64 = 3,
  kFloat32 = 4,
  kFloat16 = 5,
  kBFloat16 = 6,
  kFloat8E4M3 = 7,
  kFloat8E5M2 = 8,
  kFloat8E8M0 = 9,
  kFloat4E2M1 = 10,
};

struct WorkspaceSize {
  std::vector<std::size_t> shape;
  CoreDType dtype;
};

/// Returns the best workspace of a quantization with dbias: partial sums of the columns, fp32. A
/// smaller one is allowed. Types, mode and layout do not change it.
/// Source: TransformerEngine jax/csrc, the function with the same name.
__attribute__((visibility("default"))) WorkspaceSize GetDBiasQuantizeWorkspaceSizes(
    std::size_t batch_size, std::size_t hidden_size, CoreDType in_dtype, CoreDType out_dtype,
    CoreDType scale_dtype, JAXX_Scaling_Mode scaling_mode, JAXX_Quantize_Layout q_layout);

}  // namespace narrowfloat::xla_ffi
