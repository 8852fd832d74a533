// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/gemm_operand.h"

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/strided_rows.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

using MakeFn = std::unique_ptr<StoredOperand> (*)(OperandSource source);

template <Scheme... S>
constexpr std::array<MakeFn, sizeof...(S)> MakeTable(TypeList<S...>) {
  return {[](OperandSource source) -> std::unique_ptr<StoredOperand> {
    return std::make_unique<SchemeOperand<S>>(std::move(source));
  }...};
}

constexpr auto kMake = MakeTable(AllSchemes{});

/// Returns the amaxes of a scheme with a second level of scales: one, or one per line.
std::vector<float> LoadAmaxes(const std::string& subject, const ConstQuantizedView& view,
                              Direction direction, std::size_t lines) {
  const SchemeInfo& scheme = *view.spec.scheme;
  if (scheme.layout.amax == AmaxBuffers::kNone || scheme.block == kWholeTensor) return {};
  const Role role = direction == Direction::kRowwise ? Role::kAmaxRowwise : Role::kAmaxColumnwise;
  const ConstTensorView& buffer = view[role];
  std::vector<float> amaxes(FlattenShape(buffer.shape).Size());
  if (buffer.data == nullptr || buffer.dtype != DType::kFloat32 || !IsContiguous(buffer) ||
      (amaxes.size() != 1 && amaxes.size() != lines)) {
    throw InvalidArgument(fmt::format(
        "{}: {} must be contiguous float32 with one item or {}, got {} of shape {}", subject,
        RoleName(role), lines, DTypeName(buffer.dtype), ShapeText(buffer.shape)));
  }
  std::memcpy(amaxes.data(), buffer.data, amaxes.size() * sizeof(float));
  return amaxes;
}

}  // namespace

std::unique_ptr<StoredOperand> MakeGemmOperand(const char* verb, const char* name,
                                               const ConstQuantizedView& view,
                                               Direction direction) {
  const std::string subject = fmt::format("{}: {}", verb, name);
  CheckDirection(subject.c_str(), view, direction);
  const MatrixShape matrix = FlattenShape(view.shape);
  const bool rowwise = direction == Direction::kRowwise;
  OperandSource source;
  source.buffers = BuffersOf(view, direction);
  source.lines = rowwise ? matrix.rows : matrix.cols;
  source.length = rowwise ? matrix.cols : matrix.rows;
  source.positions_are_adjacent = rowwise || view.spec.scheme->layout.columnwise_transposed;
  source.options = ScaleOptionsOf(view.spec, DType::kFloat32);
  source.amaxes = LoadAmaxes(subject, view, direction, source.lines);
  return kMake[SchemeIndex(*view.spec.scheme)](std::move(source));
}

}  // namespace narrowfloat
