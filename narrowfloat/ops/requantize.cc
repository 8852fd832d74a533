// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/requantize.h"

#include <fmt/format.h>

#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/ops/backend.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/view_checks.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr const char* kVerb = "requantize";
constexpr const char* kConvertVerb = "block_scales_to_mxfp8";

void CheckConvertible(const ConstQuantizedView& in, Direction direction) {
  CheckScheme(in.spec);
  const SchemeInfo& scheme = *in.spec.scheme;
  const bool blocks = scheme.layout.scale_type == ScaleType::kFloat32 && !scheme.HasOneScale() &&
                      scheme.block.cols % kMxBlock == 0;
  if (!blocks) {
    throw InvalidArgument(fmt::format("{}: the scheme must have fp32 scales per block, got {}",
                                      kConvertVerb, scheme.name));
  }
  CheckDirection(kConvertVerb, in, direction);
}

}  // namespace

void Requantize(const ConstQuantizedView& in, const QuantizedView& out, DType between,
                const Execution& execution) {
  if (in.shape != out.shape) {
    throw InvalidArgument(fmt::format("{}: the output must have shape {} as the input has, got {}",
                                      kVerb, ShapeText(in.shape), ShapeText(out.shape)));
  }
  CheckBuffers(kVerb, out);
  ValidateForQuantize(out.spec);
  if (!IsFloat(between)) {
    throw InvalidArgument(
        fmt::format("{}: the type in between must be float32, float16 or bfloat16, got {}", kVerb,
                    DTypeName(between)));
  }
  CallTensors call(kVerb);
  const Direction direction = AddDequantizing(kVerb, in, call);
  AddOutputs(out, {.name = {}, .owner = "the output"}, call);
  call.Check().Requantize(in, direction, *PlannedView(out), between, execution);
}

ScaleGrid Mxfp8Grid(const ConstQuantizedView& in, Direction direction) {
  const MatrixShape matrix = FlattenShape(in.shape);
  const bool rowwise = direction == Direction::kRowwise;
  // Lines of blocks are the rows of the codes as they are stored.
  const MatrixShape stored = rowwise ? matrix : MatrixShape{matrix.cols, matrix.rows};
  constexpr std::size_t kMxfp8 = IndexIn<Mxfp8Scheme<E4M3>>(AllSchemes{});
  if constexpr (kMxfp8 < kSchemeCount) {
    return MakeScaleGrid(kSchemes[kMxfp8], Direction::kRowwise, stored);
  } else {
    throw Unsupported(fmt::format("{}: this build has no MXFP8", kConvertVerb));
  }
}

Shape Mxfp8ScalesShape(const ConstQuantizedView& in, Direction direction) {
  CheckConvertible(in, direction);
  const MatrixShape stored = Mxfp8Grid(in, direction).StoredShape();
  return {static_cast<std::int64_t>(stored.rows), static_cast<std::int64_t>(stored.cols)};
}

void BlockScalesToMxfp8(const ConstQuantizedView& in, Direction direction, const TensorView& scales,
                        const Execution& execution) {
  CheckDense(kConvertVerb, "the output", scales, DType::kUInt8, Mxfp8ScalesShape(in, direction));
  CallTensors call(kConvertVerb);
  AddDirection(in, direction, {}, call);
  call.Write({"the output"}, scales);
  call.Check().BlockScalesToMxfp8(in, direction, scales, execution);
}

void RefuseBlockScale(std::size_t line, std::size_t block, float scale_inv) {
  throw InvalidArgument(
      fmt::format("{}: the scale of line {}, block {} must be a power of two of at least 2^-127, "
                  "got {}",
                  kConvertVerb, line, block, scale_inv));
}

}  // namespace narrowfloat
