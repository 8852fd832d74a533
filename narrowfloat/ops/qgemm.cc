// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/qgemm.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "narrowfloat/ops/backend.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/ops/view_checks.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/float_environment.h"

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

/// Returns the sign mask of the Hadamard transform of the side's values, or nullopt. Only
/// columnwise values are transformed.
std::optional<std::uint64_t> TransformOf(const Side& side) {
  const QuantSpec& spec = side.view.spec;
  if (side.IsRowwise() || !spec.rht) return std::nullopt;
  return spec.rht_sign_mask;
}

void CheckTransforms(std::string_view verb, const Side& a, const Side& b, GemmLayout layout) {
  if (TransformOf(a) == TransformOf(b)) return;
  const auto text = [](const Side& side) {
    const std::optional<std::uint64_t> mask = TransformOf(side);
    return mask ? fmt::format("rht_sign_mask {}", *mask) : "no transform";
  };
  throw InvalidArgument(fmt::format(
      "{}: layout {} needs a and b to have gone through the same Hadamard transform, got {} of a "
      "and {} of b",
      verb, InfoOf(layout).name, text(a), text(b)));
}

void CheckPair(std::string_view verb, const Side& a, const Side& b, GemmLayout layout) {
  CheckScheme(a.view.spec);
  CheckScheme(b.view.spec);
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
  CheckRows(verb, "gelu_in", *options.gelu_in);
}

void CheckBias(const std::string& verb, const ConstTensorView& bias, std::int64_t cols) {
  CheckRows(verb, "bias", bias);
  if (bias.shape == Shape{cols}) return;
  throw InvalidArgument(fmt::format(
      "{}: bias must have one item for each column of the result, shape {}, got shape {}", verb,
      cols, ShapeText(bias.shape)));
}

/// Checks a product, but not its overlaps; adds its tensors to `call`. `verb` begins messages.
Product CheckProduct(const std::string& verb, const ConstQuantizedView& a,
                     const ConstQuantizedView& b, const TensorView& out, const GemmOptions& options,
                     CallTensors& call) {
  const Shape shape = QgemmShape(a, b, options.layout, verb);
  const LayoutInfo& layout = InfoOf(options.layout);
  for (const Side& side : {Side{"a", a, layout.a}, Side{"b", b, layout.b}}) {
    CheckDirectionIsThere(verb, side, options.layout);
    CheckDirection(fmt::format("{}: {}", verb, side.name).c_str(), side.view, side.direction);
  }
  CheckRows(verb, "out", out);
  if (out.shape != shape) {
    throw InvalidArgument(fmt::format("{}: out must have shape {}, got {}", verb, ShapeText(shape),
                                      ShapeText(out.shape)));
  }
  CheckGelu(verb, out, options);
  if (options.bias) CheckBias(verb, *options.bias, shape[1]);
  call.Write({"out"}, out);
  if (options.gelu_in) {
    const bool is_written = options.function == SumFunction::kGelu;
    is_written ? call.Write({"gelu_in"}, *options.gelu_in)
               : call.Read({"gelu_in"}, *options.gelu_in);
  }
  AddDirection(a, layout.a, {.name = {}, .owner = "a"}, call);
  AddDirection(b, layout.b, {.name = {}, .owner = "b"}, call);
  if (options.bias) call.Read({"bias"}, *options.bias);
  return {a, layout.a, b, layout.b, out, options};
}

GemmMode ModeOfName(const char* subject, std::string_view name) {
  for (const GemmMode mode : {GemmMode::kReproducible, GemmMode::kFast}) {
    if (GemmModeName(mode) == name) return mode;
  }
  throw InvalidArgument(
      fmt::format("{}: {} must be 'reproducible' or 'fast', got '{}'", kVerb, subject, name));
}

void CheckGroupCounts(std::size_t a, std::size_t b, std::size_t outs, std::size_t biases) {
  if (a == b && a == outs && (biases == 0 || biases == a)) return;
  throw InvalidArgument(fmt::format(
      "{}: a, b, out and bias must have one tensor for each group, got {}, {}, {} and {}",
      kGroupedVerb, a, b, outs, biases));
}

/// Adds the tensors of all groups. The last group is added first: a message names a later group
/// before an earlier one.
void AddGroups(std::span<const Product> products, CallTensors& call) {
  for (std::size_t g = products.size(); g-- > 0;) {
    const Product& product = products[g];
    call.Write({.name = "out", .group = g}, product.out);
    AddDirection(product.a, product.a_direction, {.name = "a", .group = g}, call);
    AddDirection(product.b, product.b_direction, {.name = "b", .group = g}, call);
    if (product.options.bias) call.Read({.name = "bias", .group = g}, *product.options.bias);
  }
}

GemmMode ModeOf(const std::optional<GemmMode>& wanted) {
  return wanted ? *wanted : DefaultGemmMode();
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
  CheckTransforms(verb, a_side, b_side, layout);
  return {static_cast<std::int64_t>(a_side.Lines()), static_cast<std::int64_t>(b_side.Lines())};
}

bool AreOfOneFamily(const SchemeInfo& a, const SchemeInfo& b) {
  return a.layout.scale_type == b.layout.scale_type && a.block.cols == b.block.cols &&
         a.element_bits == b.element_bits;
}

std::optional<ProductExpansion> PlanQgemmExpansion(const ConstQuantizedView& a,
                                                   const ConstQuantizedView& b, GemmLayout layout) {
  const FloatEnvironment environment;
  QgemmShape(a, b, layout);
  const LayoutInfo& info = InfoOf(layout);
  CallTensors call(kVerb);
  for (const Side& side : {Side{"a", a, info.a}, Side{"b", b, info.b}}) {
    CheckDirectionIsThere(kVerb, side, layout);
    CheckDirection(kVerb, side.view, side.direction);
    AddDirection(side.view, side.direction, {.name = {}, .owner = side.name}, call);
  }
  call.Write({"the plan"}, Extent{}, Device::kCpu);
  call.FindBackend();
  return PlanExpansion(a, info.a, b, info.b);
}

void Qgemm(const ConstQuantizedView& a, const ConstQuantizedView& b, const TensorView& out,
           const GemmOptions& options, const Execution& execution) {
  CallTensors call(kVerb);
  const Product product = CheckProduct(kVerb, a, b, out, options, call);
  const Backend& backend = call.Check();
  backend.Multiply({&product, 1}, ModeOf(options.mode), execution);
}

void GroupedQgemm(std::span<const ConstQuantizedView> a, std::span<const ConstQuantizedView> b,
                  std::span<const TensorView> outs, const GroupedGemmOptions& options,
                  const Execution& execution) {
  CheckGroupCounts(a.size(), b.size(), outs.size(), options.biases.size());
  const GemmMode mode = ModeOf(options.mode);
  std::vector<GemmOptions> own(a.size(), {.layout = options.layout, .output = options.output});
  std::vector<Product> products;
  for (std::size_t g = 0; g < a.size(); ++g) {
    if (!options.biases.empty()) own[g].bias = options.biases[g];
    const std::string verb = fmt::format("{}: group {}", kGroupedVerb, g);
    CallTensors group(verb);
    products.push_back(CheckProduct(verb, a[g], b[g], outs[g], own[g], group));
    group.CheckDisjoint();
  }
  CallTensors call(kGroupedVerb);
  AddGroups(products, call);
  call.Check().Multiply(products, mode, execution);
}

}  // namespace narrowfloat
