// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/gemm_operand.h"

#include <cstring>

#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/cpu/kernel_arguments.h"

namespace narrowfloat {
namespace {

using MakeFn = std::unique_ptr<StoredOperand> (*)(OperandSource source);

constexpr auto kMake = ArrayOf(AllSchemes{}, []<class S>() -> MakeFn {
  return [](OperandSource source) -> std::unique_ptr<StoredOperand> {
    return std::make_unique<SchemeOperand<S>>(std::move(source));
  };
});

}  // namespace

std::vector<float> LoadAmaxes(const ConstQuantizedView& view, Direction direction) {
  if (!NeedsAmax(*view.spec.scheme)) return {};
  const ConstTensorView& buffer = view[AmaxRole(direction)];
  std::vector<float> amaxes(FlattenShape(buffer.shape).Size());
  std::memcpy(amaxes.data(), buffer.data, amaxes.size() * sizeof(float));
  return amaxes;
}

std::unique_ptr<StoredOperand> MakeGemmOperand(const ConstQuantizedView& view,
                                               Direction direction) {
  const MatrixShape matrix = FlattenShape(view.shape);
  const bool rowwise = direction == Direction::kRowwise;
  OperandSource source;
  source.buffers = BuffersOf(view, direction);
  source.lines = rowwise ? matrix.rows : matrix.cols;
  source.length = rowwise ? matrix.cols : matrix.rows;
  source.positions_are_adjacent = rowwise || view.spec.scheme->layout.columnwise_transposed;
  source.options = ScaleOptionsOf(view.spec, DType::kFloat32);
  source.amaxes = LoadAmaxes(view, direction);
  return kMake[SchemeIndex(*view.spec.scheme)](std::move(source));
}

}  // namespace narrowfloat
