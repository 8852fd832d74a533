// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/dbias.h"

#include "narrowfloat/ops/backend.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/ops/view_checks.h"

namespace narrowfloat {
namespace {

Shape ColumnsOf(const ConstTensorView& in) {
  return {static_cast<std::int64_t>(FlattenShape(in.shape).cols)};
}

void Run(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
         std::optional<std::span<float>> workspace, const Execution& execution) {
  constexpr const char* kVerb = "quantize_dbias";
  CheckDense(kVerb, "dbias", dbias, in.dtype, ColumnsOf(in));
  CallTensors call(kVerb);
  if (workspace) {
    const auto bytes = std::as_bytes(*workspace);
    call.Write({"the workspace"}, {bytes.data(), bytes.data() + bytes.size()}, in.device);
  }
  call.Write({"dbias"}, dbias);
  AddQuantizing(kVerb, in, out, call);
  call.Check().QuantizeDbias(in, *PlannedView(out), dbias, workspace, execution);
}

}  // namespace

void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   std::span<float> workspace, const Execution& execution) {
  Run(in, out, dbias, workspace, execution);
}

void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   const Execution& execution) {
  Run(in, out, dbias, std::nullopt, execution);
}

void ColumnSums(const ConstTensorView& in, const TensorView& sums, const Execution& execution) {
  constexpr const char* kVerb = "column_sums";
  CheckRows(kVerb, "the input", in);
  CheckDense(kVerb, "the output", sums, DType::kFloat32, ColumnsOf(in));
  CallTensors call(kVerb);
  call.Read({"the input"}, in);
  call.Write({"the output"}, sums);
  call.Check().ColumnSums(in, sums, execution);
}

Shape DbiasWorkspaceShape(const Shape& shape) {
  const MatrixShape matrix = FlattenShape(shape);
  return {static_cast<std::int64_t>(CeilDiv(matrix.rows, kDbiasStripRows)),
          static_cast<std::int64_t>(matrix.cols)};
}

}  // namespace narrowfloat
