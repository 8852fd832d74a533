// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/qgemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/fast_gemm.h"
#include "narrowfloat/ops/float_environment.h"
#include "narrowfloat/ops/gemm_driver.h"
#include "narrowfloat/ops/slab_gemm.h"
#include "narrowfloat/ops/strided_rows.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr const char* kVerb = "qgemm";
constexpr const char* kGroupedVerb = "grouped_qgemm";

/// Properties of each layout, in the order of GemmLayout.
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

void CheckPair(std::string_view verb, const Side& a, const Side& b, GemmLayout layout) {
  const SchemeInfo &a_scheme = *a.view.spec.scheme, &b_scheme = *b.view.spec.scheme;
  if (!AreOfOneFamily(a_scheme, b_scheme)) {
    throw InvalidArgument(fmt::format(
        "{}: a and b must have elements of one width and scales of one type over blocks of one "
        "length, got {} and {}",
        verb, a_scheme.name, b_scheme.name));
  }
  if (a.Length() == b.Length()) return;
  throw InvalidArgument(fmt::format(
      "{}: layout {} needs as many {} of a as {} of b, got a of shape {} and b of shape {}", verb,
      InfoOf(layout).name, a.IsRowwise() ? "columns" : "rows", b.IsRowwise() ? "columns" : "rows",
      ShapeText(a.view.shape), ShapeText(b.view.shape)));
}

void CheckDirectionIsThere(std::string_view verb, const Side& side, GemmLayout layout) {
  if (HasDirection(side.view, side.direction)) return;
  const bool has_data = side.view[DataRole(side.direction)].data != nullptr;
  const Role missing = has_data ? ScaleInvRole(side.direction) : DataRole(side.direction);
  throw InvalidArgument(fmt::format("{}: layout {} reads {} of {}, which is missing", verb,
                                    InfoOf(layout).name, RoleName(missing), side.name));
}

void CheckSideIsDisjoint(std::string_view verb, const Side& side, const Extent& output,
                         std::string_view name = "out") {
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (!output.Overlaps(ExtentOf(side.view.buffers[i]))) continue;
    RefuseOverlap(verb, name, fmt::format("{} of {}", RoleName(static_cast<Role>(i)), side.name));
  }
}

template <class... T>
float LoadFloat(TypeList<T...>, DType dtype, const std::byte* row, std::size_t index) {
  using LoadFn = float (*)(const std::byte*, std::size_t);
  constexpr LoadFn kLoad[] = {&LoadItem<T>...};
  return kLoad[static_cast<std::size_t>(dtype)](row, index);
}

/// Returns the bias as fp32. Errors: InvalidArgument if it is not one float per output column.
std::vector<float> LoadBias(const std::string& verb, const ConstTensorView& bias,
                            const Extent& output, std::int64_t cols) {
  StridedRows<const std::byte> rows;
  FillRows(verb.c_str(), "bias", bias, rows);
  if (bias.shape != Shape{cols}) {
    throw InvalidArgument(fmt::format(
        "{}: bias must have one item for each column of the result, shape {}, got shape {}", verb,
        cols, ShapeText(bias.shape)));
  }
  CheckDisjoint(verb, "out", output, "bias", ExtentOf(bias));
  std::vector<float> items(static_cast<std::size_t>(cols));
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = LoadFloat(FloatTypes{}, bias.dtype, rows.matrix.data, i);
  }
  return items;
}

/// A product with valid arguments, and the objects that its problem refers to.
struct CheckedProduct {
  std::unique_ptr<StoredOperand> a, b;
  StridedRows<std::byte> rows, points;
  GemmResult result;
  GemmRule rule;

  GemmProblem Problem() const { return {*a, *b, rule, result}; }
};

/// Checks the options of GELU. Requires: `out` is a valid result. Errors: InvalidArgument.
void CheckGelu(const std::string& verb, const TensorView& out, const GemmOptions& options) {
  const bool is_there = options.gelu_in.has_value();
  if (options.function == SumFunction::kNone && is_there) {
    throw InvalidArgument(fmt::format("{}: gelu_in needs gelu", verb));
  }
  if (options.function == SumFunction::kTimesGeluGradient && !is_there) {
    throw InvalidArgument(fmt::format("{}: GELU's derivative needs gelu_in", verb));
  }
  if (!is_there) return;
  if (options.gelu_in->shape != out.shape || options.gelu_in->dtype != out.dtype) {
    throw InvalidArgument(fmt::format("{}: gelu_in must be {} of shape {} as out is, got {} of {}",
                                      verb, DTypeName(out.dtype), ShapeText(out.shape),
                                      DTypeName(options.gelu_in->dtype),
                                      ShapeText(options.gelu_in->shape)));
  }
  const Extent points = ExtentOf(*options.gelu_in);
  CheckDisjoint(verb, "out", ExtentOf(out), "gelu_in", points);
  if (options.function == SumFunction::kGelu && options.bias) {
    CheckDisjoint(verb, "gelu_in", points, "bias", ExtentOf(*options.bias));
  }
}

/// Checks one product and fills `product`. `verb` begins the messages.
void FillProduct(const std::string& verb, const ConstQuantizedView& a, const ConstQuantizedView& b,
                 const TensorView& out, const GemmOptions& options, CheckedProduct& product) {
  const Shape shape = QgemmShape(a, b, options.layout, verb);
  const LayoutInfo& layout = InfoOf(options.layout);
  for (const Side& side : {Side{"a", a, layout.a}, Side{"b", b, layout.b}}) {
    CheckDirectionIsThere(verb, side, options.layout);
    CheckSideIsDisjoint(verb, side, ExtentOf(out));
    if (options.gelu_in && options.function == SumFunction::kGelu) {
      CheckSideIsDisjoint(verb, side, ExtentOf(*options.gelu_in), "gelu_in");
    }
  }
  product.a = MakeGemmOperand(verb.c_str(), "a", a, layout.a);
  product.b = MakeGemmOperand(verb.c_str(), "b", b, layout.b);
  FillRows(verb.c_str(), "out", out, product.rows);
  if (out.shape != shape) {
    throw InvalidArgument(fmt::format("{}: out must have shape {}, got {}", verb, ShapeText(shape),
                                      ShapeText(out.shape)));
  }
  CheckGelu(verb, out, options);
  product.result = {
      product.rows.matrix, out.dtype, options.output == GemmOutput::kAccumulate, {}, {}};
  product.result.step.function = options.function;
  if (options.gelu_in) {
    FillRows(verb.c_str(), "gelu_in", *options.gelu_in, product.points);
    product.result.step.points = product.points.matrix;
  }
  std::optional<DType> bias_dtype;
  if (options.bias) {
    bias_dtype = options.bias->dtype;
    product.result.bias = LoadBias(verb, *options.bias, ExtentOf(out), shape[1]);
  }
  product.rule = RuleOf(*a.spec.scheme, *b.spec.scheme, out.dtype, bias_dtype);
  if (options.function != SumFunction::kNone) {
    product.rule.bias = product.rule.accumulate = TermRounding::kAfterTerm;
  }
}

/// The products of one call: those that expand to bfloat16 in mode kFast, and the others.
struct Work {
  struct Expanded {
    GemmProblem problem;
    ProductExpansion expansion;
  };
  std::vector<Expanded> expanded;
  std::vector<GemmProblem> others;

  void Add(const GemmProblem& problem, const ConstQuantizedView& a, const ConstQuantizedView& b,
           const LayoutInfo& layout, GemmMode mode) {
    std::optional<ProductExpansion> expansion;
    if (mode == GemmMode::kFast) expansion = PlanExpansion(a, layout.a, b, layout.b);
    if (expansion) {
      expanded.push_back({problem, *std::move(expansion)});
    } else {
      others.push_back(problem);
    }
  }

  void Run(const Execution& execution) const {
    const BFloat16MultiplyFn multiply = expanded.empty() ? nullptr : LoadBFloat16Multiply();
    MultiplyAll(others, execution);
    for (const Expanded& product : expanded)
      MultiplyExpanded(product.problem, product.expansion, multiply, execution);
  }
};

GemmMode ModeOfName(const char* subject, std::string_view name) {
  for (const GemmMode mode : {GemmMode::kReproducible, GemmMode::kFast}) {
    if (GemmModeName(mode) == name) return mode;
  }
  throw InvalidArgument(
      fmt::format("{}: {} must be 'reproducible' or 'fast', got '{}'", kVerb, subject, name));
}

/// Returns the mode that a call runs in: kFast needs instructions for bfloat16, and vector kernels.
GemmMode ModeOf(const std::optional<GemmMode>& wanted, const Execution& execution) {
  const KernelTable& table = execution.Kernels();
  const GemmMode mode = wanted ? *wanted : DefaultGemmMode();
  return table.gemm != nullptr && HasBFloat16Products() ? mode : GemmMode::kReproducible;
}

/// Memory that one group writes.
struct Written {
  Extent extent;
  std::size_t group;
};

/// Returns the outputs of the groups by address. Errors: InvalidArgument if two of them overlap.
std::vector<Written> CheckOutputsAreDisjoint(std::span<const TensorView> outs) {
  std::vector<Written> written;
  for (std::size_t g = 0; g < outs.size(); ++g) {
    const Extent extent = ExtentOf(outs[g]);
    if (extent.begin != extent.end) written.push_back({extent, g});
  }
  std::ranges::sort(written, {}, [](const Written& item) { return item.extent.begin; });
  for (std::size_t i = 1; i < written.size(); ++i) {
    if (!written[i].extent.Overlaps(written[i - 1].extent)) continue;
    RefuseOverlap(kGroupedVerb, fmt::format("out of group {}", written[i].group),
                  fmt::format("out of group {}", written[i - 1].group));
  }
  return written;
}

/// Checks that no group writes to `read`, an input of group `group`.
void CheckIsNotWritten(const std::vector<Written>& written, const Extent& read,
                       std::string_view name, std::size_t group) {
  if (read.begin == read.end) return;
  // The extents are disjoint, so it suffices to test the first one that ends behind the beginning.
  const auto found = std::ranges::upper_bound(written, read.begin, {},
                                              [](const Written& item) { return item.extent.end; });
  if (found == written.end() || !found->extent.Overlaps(read)) return;
  RefuseOverlap(kGroupedVerb, fmt::format("out of group {}", found->group),
                fmt::format("{} of group {}", name, group));
}

void CheckGroupCounts(std::size_t a, std::size_t b, std::size_t outs, std::size_t biases) {
  if (a == b && a == outs && (biases == 0 || biases == a)) return;
  throw InvalidArgument(fmt::format(
      "{}: a, b, out and bias must have one tensor for each group, got {}, {}, {} and {}",
      kGroupedVerb, a, b, outs, biases));
}

}  // namespace

GemmLayout FindGemmLayout(std::string_view name) {
  for (std::size_t i = 0; i < kLayouts.size(); ++i) {
    if (kLayouts[i].name == name) return static_cast<GemmLayout>(i);
  }
  throw InvalidArgument(
      fmt::format("{}: layout must be 'TN', 'NN' or 'NT', got '{}'", kVerb, name));
}

GemmMode FindGemmMode(std::string_view name) {
  return ModeOfName("mode", name);
}

std::string_view GemmModeName(GemmMode mode) {
  return mode == GemmMode::kFast ? "fast" : "reproducible";
}

GemmMode DefaultGemmMode() {
  const char* name = std::getenv("NF_PRODUCT");
  if (name == nullptr || *name == '\0') return GemmMode::kReproducible;
  return ModeOfName("NF_PRODUCT", name);
}

Shape QgemmShape(const ConstQuantizedView& a, const ConstQuantizedView& b, GemmLayout layout,
                 std::string_view verb) {
  const Side a_side{"a", a, InfoOf(layout).a}, b_side{"b", b, InfoOf(layout).b};
  CheckPair(verb, a_side, b_side, layout);
  return {static_cast<std::int64_t>(a_side.Lines()), static_cast<std::int64_t>(b_side.Lines())};
}

std::optional<ProductExpansion> PlanQgemmExpansion(const ConstQuantizedView& a,
                                                   const ConstQuantizedView& b, GemmLayout layout) {
  const FloatEnvironment environment;
  QgemmShape(a, b, layout);
  const LayoutInfo& info = InfoOf(layout);
  for (const Side& side : {Side{"a", a, info.a}, Side{"b", b, info.b}}) {
    CheckDirectionIsThere(kVerb, side, layout);
    CheckDirection(kVerb, side.view, side.direction);
  }
  return PlanExpansion(a, info.a, b, info.b);
}

void Qgemm(const ConstQuantizedView& a, const ConstQuantizedView& b, const TensorView& out,
           const GemmOptions& options, const Execution& execution) {
  const FloatEnvironment environment;  // operands decode their scales on construction
  CheckedProduct product;
  FillProduct(kVerb, a, b, out, options, product);
  if (execution.IsNoop()) return;
  Work work;
  work.Add(product.Problem(), a, b, InfoOf(options.layout), ModeOf(options.mode, execution));
  work.Run(execution);
}

void GroupedQgemm(std::span<const ConstQuantizedView> a, std::span<const ConstQuantizedView> b,
                  std::span<const TensorView> outs, const GroupedGemmOptions& options,
                  const Execution& execution) {
  const FloatEnvironment environment;
  CheckGroupCounts(a.size(), b.size(), outs.size(), options.biases.size());
  std::vector<CheckedProduct> products(a.size());
  Work work;
  const GemmMode mode = ModeOf(options.mode, execution);
  const std::vector<Written> written = CheckOutputsAreDisjoint(outs);
  for (std::size_t g = 0; g < a.size(); ++g) {
    GemmOptions own{.layout = options.layout, .output = options.output};
    if (!options.biases.empty()) own.bias = options.biases[g];
    FillProduct(fmt::format("{}: group {}", kGroupedVerb, g), a[g], b[g], outs[g], own,
                products[g]);
    for (std::size_t role = 0; role < kRoleCount; ++role) {
      CheckIsNotWritten(written, ExtentOf(a[g].buffers[role]), "a", g);
      CheckIsNotWritten(written, ExtentOf(b[g].buffers[role]), "b", g);
    }
    if (own.bias) CheckIsNotWritten(written, ExtentOf(*own.bias), "bias", g);
    work.Add(products[g].Problem(), a[g], b[g], InfoOf(options.layout), mode);
  }
  if (!execution.IsNoop()) work.Run(execution);
}

}  // namespace narrowfloat
