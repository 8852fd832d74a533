// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/qgemm.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/gemm_driver.h"
#include "narrowfloat/ops/input.h"
#include "narrowfloat/ops/slab_gemm.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr const char* kVerb = "qgemm";

/// What a layout means for its operands, in the order of GemmLayout.
struct LayoutInfo {
  std::string_view name;
  Direction a, b;
};
constexpr std::array kLayouts = {
    LayoutInfo{"TN", Direction::kRowwise, Direction::kRowwise},
    LayoutInfo{"NN", Direction::kRowwise, Direction::kColumnwise},
    LayoutInfo{"NT", Direction::kColumnwise, Direction::kColumnwise},
};

const LayoutInfo& InfoOf(GemmLayout layout) {
  return kLayouts[static_cast<std::size_t>(layout)];
}

/// One side of the product.
struct Side {
  const char* name;
  const ConstQuantizedView& view;
  Direction direction;

  MatrixShape Matrix() const { return FlattenShape(view.shape); }
  bool IsRowwise() const { return direction == Direction::kRowwise; }
  std::size_t Lines() const { return IsRowwise() ? Matrix().rows : Matrix().cols; }
  std::size_t Length() const { return IsRowwise() ? Matrix().cols : Matrix().rows; }
};

void CheckPair(const Side& a, const Side& b, GemmLayout layout) {
  const SchemeInfo &a_scheme = *a.view.spec.scheme, &b_scheme = *b.view.spec.scheme;
  if (!AreOfOneFamily(a_scheme, b_scheme)) {
    throw InvalidArgument(fmt::format(
        "{}: a and b must have elements of one width and scales of one type over blocks of one "
        "length, got {} and {}",
        kVerb, a_scheme.name, b_scheme.name));
  }
  if (a.Length() == b.Length()) return;
  throw InvalidArgument(fmt::format(
      "{}: layout {} sums over the {} of a and the {} of b, which must be as many, got "
      "a of shape {} and b of shape {}",
      kVerb, InfoOf(layout).name, a.IsRowwise() ? "columns" : "rows",
      b.IsRowwise() ? "columns" : "rows", ShapeText(a.view.shape), ShapeText(b.view.shape)));
}

void CheckDirectionIsThere(const Side& side, GemmLayout layout) {
  if (HasDirection(side.view, side.direction)) return;
  const bool has_data = side.view[DataRole(side.direction)].data != nullptr;
  const Role missing = has_data ? ScaleInvRole(side.direction) : DataRole(side.direction);
  throw InvalidArgument(fmt::format("{}: layout {} reads {} of {}, which is missing", kVerb,
                                    InfoOf(layout).name, RoleName(missing), side.name));
}

void CheckDisjoint(const Side& side, const Extent& output) {
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (!output.Overlaps(ExtentOf(side.view.buffers[i]))) continue;
    throw InvalidArgument(fmt::format("{}: out must not overlap {} of {}", kVerb,
                                      RoleName(static_cast<Role>(i)), side.name));
  }
}

template <class... T>
float LoadFloat(TypeList<T...>, DType dtype, const std::byte* row, std::size_t index) {
  using LoadFn = float (*)(const std::byte*, std::size_t);
  constexpr LoadFn kLoad[] = {&LoadItem<T>...};
  return kLoad[static_cast<std::size_t>(dtype)](row, index);
}

/// The bias as fp32. Errors: InvalidArgument if it is not one float an output column.
std::vector<float> LoadBias(const ConstTensorView& bias, const Extent& output, std::int64_t cols) {
  Rows<const std::byte> rows;
  FillRows(kVerb, "bias", bias, rows);
  if (bias.shape != Shape{cols}) {
    throw InvalidArgument(fmt::format(
        "{}: bias must have one item for each column of the result, shape {}, got shape {}", kVerb,
        cols, ShapeText(bias.shape)));
  }
  if (output.Overlaps(ExtentOf(bias))) {
    throw InvalidArgument(fmt::format("{}: out must not overlap bias", kVerb));
  }
  std::vector<float> items(static_cast<std::size_t>(cols));
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = LoadFloat(FloatTypes{}, bias.dtype, rows.matrix.data, i);
  }
  return items;
}

}  // namespace

GemmLayout FindGemmLayout(std::string_view name) {
  for (std::size_t i = 0; i < kLayouts.size(); ++i) {
    if (kLayouts[i].name == name) return static_cast<GemmLayout>(i);
  }
  throw InvalidArgument(
      fmt::format("{}: layout must be 'TN', 'NN' or 'NT', got '{}'", kVerb, name));
}

Shape QgemmShape(const ConstQuantizedView& a, const ConstQuantizedView& b, GemmLayout layout) {
  const Side a_side{"a", a, InfoOf(layout).a}, b_side{"b", b, InfoOf(layout).b};
  CheckPair(a_side, b_side, layout);
  return {static_cast<std::int64_t>(a_side.Lines()), static_cast<std::int64_t>(b_side.Lines())};
}

void Qgemm(const ConstQuantizedView& a, const ConstQuantizedView& b, const TensorView& out,
           const GemmOptions& options, const Execution& execution) {
  const Shape shape = QgemmShape(a, b, options.layout);
  const LayoutInfo& layout = InfoOf(options.layout);
  for (const Side& side : {Side{"a", a, layout.a}, Side{"b", b, layout.b}}) {
    CheckDirectionIsThere(side, options.layout);
    CheckDisjoint(side, ExtentOf(out));
  }
  const auto a_operand = MakeGemmOperand(kVerb, "a", a, layout.a);
  const auto b_operand = MakeGemmOperand(kVerb, "b", b, layout.b);
  Rows<std::byte> rows;
  FillRows(kVerb, "out", out, rows);
  if (out.shape != shape) {
    throw InvalidArgument(fmt::format("{}: out must have shape {}, got {}", kVerb, ShapeText(shape),
                                      ShapeText(out.shape)));
  }
  GemmResult result{rows.matrix, out.dtype, options.output == GemmOutput::kAccumulate, {}};
  std::optional<DType> bias_dtype;
  if (options.bias) {
    bias_dtype = options.bias->dtype;
    result.bias = LoadBias(*options.bias, ExtentOf(out), shape[1]);
  }
  if (execution.IsNoop()) return;

  const GemmRule rule = RuleOf(*a.spec.scheme, *b.spec.scheme, out.dtype, bias_dtype);
  const GemmProblem problem{*a_operand, *b_operand, rule, result};
  MultiplyAll({&problem, 1}, execution);
}

}  // namespace narrowfloat
