// SPDX-License-Identifier: Apache-2.0
// The verbs on PyTorch's tensors.
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "bindings/python/docs.h"
#include "bindings/python/options.h"
#include "bindings/python/quantized_tensor.h"
#include "bindings/python/torch_memory.h"
#include "bindings/python/verbs.h"
#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/delayed_scale.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/derive_columnwise.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/swizzle.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/float_environment.h"
#include "narrowfloat/tensor/plan_rule.h"

namespace narrowfloat::python {
namespace {

/// Returns true for roles in plans for which a caller may omit the tensor.
bool MayBeScratch(Role role) {
  return role == Role::kScale || role == Role::kAmaxRowwise || role == Role::kAmaxColumnwise;
}

/// The verbs on tensors of one PyTorch.
class TorchTensors {
 public:
  explicit TorchTensors(const nb::object& torch) : torch_(torch) {}

  void Quantize(const QuantSpec& spec, nb::handle x, const nb::tuple& buffers, nb::handle noop,
                nb::handle scale, nb::handle amax, nb::handle amax_columnwise, std::uint64_t seed,
                std::uint64_t offset, int threads) const;
  void Dequantize(const QuantSpec& spec, const nb::tuple& buffers, nb::handle out,
                  int threads) const;
  void DeriveColumnwise(const QuantSpec& spec, const nb::object& shape, const nb::tuple& buffers,
                        int threads) const;
  void Swizzle(const QuantSpec& spec, const nb::object& shape, const nb::tuple& buffers,
               const nb::tuple& out, int threads) const;
  void Qgemm(const QuantSpec& a_spec, const nb::object& a_shape, const nb::tuple& a,
             const QuantSpec& b_spec, const nb::object& b_shape, const nb::tuple& b,
             std::string_view layout, nb::handle out, nb::handle bias, bool accumulate,
             int threads) const;
  void Amax(nb::handle x, nb::handle out, int threads) const;
  void ColumnSums(nb::handle x, nb::handle out, int threads) const;
  void UpdateDelayedScale(nb::handle amax_history, nb::handle scale, float fp8_max, float margin,
                          std::string_view algo, nb::handle reduced_amax) const;

 private:
  TorchExchange torch_;
};

/// Views the planned buffers. With `allocates`, allocates scratch memory for a scale or an amax
/// without a tensor.
void Bind(TorchCall& call, const nb::tuple& buffers, QuantizedView& view, Access access,
          bool allocates = false) {
  if (buffers.size() != kRoleCount) {
    throw InvalidArgument(
        fmt::format("{}: needs {} buffers, got {}", call.verb(), kRoleCount, buffers.size()));
  }
  for (const BufferPlan& planned : PlanQuantize(view.spec, view.shape)) {
    const nb::handle tensor = buffers[static_cast<std::size_t>(planned.role)];
    if (!tensor.is_none()) {
      view[planned.role] =
          call.ViewDense(RoleName(planned.role), tensor, planned.dtype, planned.shape, access);
    } else if (allocates && MayBeScratch(planned.role)) {
      view[planned.role] = call.Scratch(planned.shape);
    }
  }
}

float FloatAt(const std::byte* address) {
  float item = 0.0f;
  std::memcpy(&item, address, sizeof item);
  return item;
}

/// An optional float32 argument: its value if it is in CPU memory, else its address in device
/// memory.
struct GivenFloat {
  std::optional<float> number;
  const float* address = nullptr;

  GivenFloat(TorchCall& call, std::string_view name, nb::handle tensor) {
    if (tensor.is_none()) return;
    const std::byte* item = call.AddressOf(name, tensor);
    if (call.OnCpu()) {
      number = FloatAt(item);
    } else {
      address = reinterpret_cast<const float*>(item);
    }
  }
  bool IsGiven() const { return number.has_value() || address != nullptr; }
};

/// Updates the amax of delayed scaling: the call measures into scratch memory, then Raise() stores
/// the larger amax. Several steps may share a row of the history.
class AmaxHistory {
 public:
  AmaxHistory(TorchCall& call, nb::handle tensor, TensorView& buffer)
      : old_(buffer.data), tensor_(tensor) {
    if (call.OnCpu()) {
      buffer.data = reinterpret_cast<std::byte*>(&measured_);
    } else {
      scratch_ = call.ScratchAmax(tensor);
      buffer = call.ViewDense("amax_rowwise", scratch_, DType::kFloat32, {1}, Access::kWrite);
    }
  }
  AmaxHistory(const AmaxHistory&) = delete;
  AmaxHistory& operator=(const AmaxHistory&) = delete;

  void Raise(const TorchExchange& torch) const {
    if (scratch_.is_valid()) return torch.RaiseAmax(tensor_, scratch_);
    const FloatEnvironment environment;  // a subnormal amax is larger than 0
    if (measured_ > FloatAt(old_)) std::memcpy(old_, &measured_, sizeof measured_);
  }

 private:
  std::byte* old_;
  nb::handle tensor_;
  float measured_ = 0.0f;
  nb::object scratch_;  // on CUDA
};

void TorchTensors::Quantize(const QuantSpec& spec, nb::handle x, const nb::tuple& buffers,
                            nb::handle noop, nb::handle scale, nb::handle amax,
                            nb::handle amax_columnwise, std::uint64_t seed, std::uint64_t offset,
                            int threads) const {
  TorchCall call(torch_, "quantize");
  const TensorView in = call.ViewInput(x);
  const GivenFloat skip(call, "noop_flag", noop), given_scale(call, "scale", scale),
      rows(call, "amax", amax), columns(call, "amax_columnwise", amax_columnwise);
  QuantizedView out{spec, in.shape, {}};
  if (given_scale.number) out.spec.scale = given_scale.number;
  if (rows.number) out.spec.amax = rows.number;
  if (columns.number) out.spec.amax_columnwise = columns.number;
  if (spec.stochastic_rounding) {
    out.spec.seed = seed;
    out.spec.offset = offset;
  }
  Bind(call, buffers, out, Access::kWrite, true);
  const Execution on_host{.noop = skip.number ? &*skip.number : nullptr};
  if (on_host.IsNoop() || FlattenShape(out.shape).Size() == 0) return;
  std::optional<AmaxHistory> history;
  const nb::handle measured = buffers[static_cast<std::size_t>(Role::kAmaxRowwise)];
  if (given_scale.IsGiven() && !measured.is_none())
    history.emplace(call, measured, out[Role::kAmaxRowwise]);
  Execution execution = call.Start(threads);
  execution.noop = skip.address;
  execution.scale = given_scale.address;
  execution.amax = rows.address;
  execution.amax_columnwise = columns.address;
  {
    const nb::gil_scoped_release unlocked;
    narrowfloat::Quantize(in, out, execution);
  }
  if (history) history->Raise(torch_);
}

void TorchTensors::Dequantize(const QuantSpec& spec, const nb::tuple& buffers, nb::handle out,
                              int threads) const {
  TorchCall call(torch_, "dequantize");
  const TensorView values = call.View("the output", out, Access::kWrite);
  QuantizedView in{spec, values.shape, {}};
  Bind(call, buffers, in, Access::kRead);
  const Execution execution = call.Start(threads);
  const nb::gil_scoped_release unlocked;
  narrowfloat::Dequantize(in, values, execution);
}

void TorchTensors::DeriveColumnwise(const QuantSpec& spec, const nb::object& shape,
                                    const nb::tuple& buffers, int threads) const {
  TorchCall call(torch_, "derive_columnwise");
  QuantizedView view{spec, ParseShape(call.verb(), shape), {}};
  Bind(call, buffers, view, Access::kWrite);
  const Execution execution = call.Start(threads);
  const nb::gil_scoped_release unlocked;
  narrowfloat::DeriveColumnwise(view, view, execution);
}

void TorchTensors::Swizzle(const QuantSpec& spec, const nb::object& shape, const nb::tuple& buffers,
                           const nb::tuple& out, int threads) const {
  TorchCall call(torch_, "swizzle");
  QuantizedView in{spec, ParseShape(call.verb(), shape), {}};
  QuantizedView swizzled = in;
  swizzled.spec.swizzled = true;
  Bind(call, buffers, in, Access::kRead);
  Bind(call, out, swizzled, Access::kWrite);
  const Execution execution = call.Start(threads);
  const nb::gil_scoped_release unlocked;
  narrowfloat::Swizzle(in, swizzled, execution);
}

void TorchTensors::Qgemm(const QuantSpec& a_spec, const nb::object& a_shape, const nb::tuple& a,
                         const QuantSpec& b_spec, const nb::object& b_shape, const nb::tuple& b,
                         std::string_view layout, nb::handle out, nb::handle bias, bool accumulate,
                         int threads) const {
  TorchCall call(torch_, "qgemm");
  QuantizedView first{a_spec, ParseShape(call.verb(), a_shape), {}};
  QuantizedView second{b_spec, ParseShape(call.verb(), b_shape), {}};
  Bind(call, a, first, Access::kRead);
  Bind(call, b, second, Access::kRead);
  GemmOptions options{.layout = FindGemmLayout(layout), .mode = GemmMode::kReproducible};
  if (accumulate) options.output = GemmOutput::kAccumulate;
  if (!bias.is_none()) options.bias = call.View("bias", bias, Access::kRead);
  const TensorView result = call.View("out", out, Access::kWrite);
  const Execution execution = call.Start(threads);
  const nb::gil_scoped_release unlocked;
  narrowfloat::Qgemm(first, second, result, options, execution);
}

void TorchTensors::Amax(nb::handle x, nb::handle out, int threads) const {
  TorchCall call(torch_, "amax");
  const TensorView in = call.ViewInput(x);
  const TensorView result = call.ViewDense("the output", out, DType::kFloat32, {1}, Access::kWrite);
  const Execution execution = call.Start(threads);
  const nb::gil_scoped_release unlocked;
  narrowfloat::Amax(in, result, execution);
}

void TorchTensors::ColumnSums(nb::handle x, nb::handle out, int threads) const {
  TorchCall call(torch_, "column_sums");
  const TensorView in = call.ViewInput(x);
  const Shape columns{static_cast<std::int64_t>(FlattenShape(in.shape).cols)};
  const TensorView sums =
      call.ViewDense("the output", out, DType::kFloat32, columns, Access::kWrite);
  const Execution execution = call.Start(threads);
  const nb::gil_scoped_release unlocked;
  narrowfloat::ColumnSums(in, sums, execution);
}

void TorchTensors::UpdateDelayedScale(nb::handle amax_history, nb::handle scale, float fp8_max,
                                      float margin, std::string_view algo,
                                      nb::handle reduced_amax) const {
  TorchCall call(torch_, "update_delayed_scale");
  const TensorView history = call.View("amax_history", amax_history, Access::kWrite);
  const TensorView scales = call.View("scale", scale, Access::kWrite);
  const DelayedScaleRule rule{fp8_max, margin, FindAmaxAlgorithm(algo)};
  std::optional<ConstTensorView> reduced;
  if (!reduced_amax.is_none()) reduced = call.View("reduced_amax", reduced_amax, Access::kRead);
  const Execution execution = call.Start(1);
  const nb::gil_scoped_release unlocked;
  narrowfloat::UpdateDelayedScale(history, scales, rule, reduced ? &*reduced : nullptr, execution);
}

/// Returns [(role, dtype, shape, storage role)], in the order of PlanQuantize.
nb::list PlanOf(const QuantSpec& spec, const nb::object& shape) {
  nb::list plan;
  for (const BufferPlan& buffer : PlanQuantize(spec, ParseShape("plan", shape))) {
    plan.append(nb::make_tuple(RoleName(buffer.role), DTypeName(buffer.dtype),
                               ShapeTuple(buffer.shape), RoleName(buffer.storage)));
  }
  return plan;
}

/// Returns [(role, dtype, [(dimensions, divisor, multiple)], storage role)], in the order of
/// PlanRules.
nb::list PlanRulesOf(const QuantSpec& spec, std::size_t rank) {
  nb::list rules;
  for (const BufferRule& buffer : PlanRules(spec, rank)) {
    nb::list sizes;
    for (const SizeRule& size : buffer.sizes) {
      sizes.append(
          nb::make_tuple(nb::tuple(nb::cast(size.dimensions)), size.divisor, size.multiple));
    }
    rules.append(nb::make_tuple(RoleName(buffer.role), DTypeName(buffer.dtype), sizes,
                                RoleName(buffer.storage)));
  }
  return rules;
}

/// Returns the shape of a direction's stored scales without padding.
nb::tuple ScaleContentShape(const QuantSpec& spec, const nb::object& shape, bool columnwise) {
  const MatrixShape matrix = FlattenShape(ParseShape("scale_content_shape", shape));
  const Direction direction = columnwise ? Direction::kColumnwise : Direction::kRowwise;
  const MatrixShape content = ContentShape(MakeScaleGrid(*spec.scheme, direction, matrix));
  return nb::make_tuple(content.rows, content.cols);
}

QuantSpec SpecOf(std::string_view scheme, bool rowwise, bool columnwise,
                 const nb::kwargs& options) {
  return ParseOptions("quantize", scheme, rowwise, columnwise, options, OptionScope::kSpecOnly)
      .spec;
}

bool SpecHasWholeBlocks(const QuantSpec& spec, const nb::object& shape) {
  return HasWholeBlocks(*spec.scheme, FlattenShape(ParseShape("quantize", shape)));
}

std::vector<std::string> RoleNames() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kRoleCount; ++i) names.emplace_back(RoleName(static_cast<Role>(i)));
  return names;
}

}  // namespace

void RegisterTorchTensors(nb::module_& module) {
  module.def("buffer_roles", &RoleNames,
             "Returns the roles of buffers, in the order that calls take them.");
  nb::class_<QuantSpec>(module, "QuantSpec", kQuantSpecDoc)
      .def_prop_ro("text", &PrintQuantSpec, "Text form, defaults left out.")
      .def_prop_ro(
          "scheme", [](const QuantSpec& self) { return std::string(self.scheme->name); },
          "Name of the scheme.")
      .def_prop_ro(
          "block_length", [](const QuantSpec& self) { return self.scheme->block.cols; },
          "Elements along a line that share a scale; 0 if the whole tensor does.")
      .def_prop_ro(
          "derives_columnwise",
          [](const QuantSpec& self) { return DerivesColumnwise(*self.scheme); },
          "Whether columnwise codes can be made of the rowwise ones.")
      .def_prop_ro(
          "columnwise_transposed",
          [](const QuantSpec& self) { return self.scheme->layout.columnwise_transposed; },
          "Whether columnwise codes lie last dimension first.")
      .def_prop_ro(
          "codes_per_byte",
          [](const QuantSpec& self) { return CodesPerByte(self.scheme->element_bits); },
          "Codes that share a byte.")
      .def("plan", &PlanOf, nb::arg("shape"), nb::sig(kPlanSignature), kPlanDoc)
      .def("plan_rules", &PlanRulesOf, nb::arg("rank"), nb::sig(kPlanRulesSignature), kPlanRulesDoc)
      .def("scale_content_shape", &ScaleContentShape, nb::arg("shape"), nb::arg("columnwise"),
           nb::sig("def scale_content_shape(self, shape: object, columnwise: bool) -> "
                   "tuple[int, int]"),
           "Returns the shape of the stored scales of a direction without their padding.")
      .def("has_whole_blocks", &SpecHasWholeBlocks, nb::arg("shape"),
           nb::sig("def has_whole_blocks(self, shape: object) -> bool"),
           "Returns whether rows and columns of shape are multiples of the block.");
  module.def("make_spec", &SpecOf, nb::arg("scheme"), nb::arg("rowwise") = true,
             nb::arg("columnwise") = false, nb::arg("options"), nb::sig(kMakeSpecSignature),
             "Returns the QuantSpec of a scheme, directions and the options of quantize().");
  module.def("parse_spec", &ParseQuantSpec, nb::arg("text"),
             "Returns the QuantSpec of a text form.");
  nb::class_<TorchTensors>(module, "TorchTensors", kTorchTensorsDoc)
      .def(nb::init<const nb::object&>(), nb::arg("torch"))
      .def("quantize", &TorchTensors::Quantize, nb::arg("spec"), nb::arg("x"), nb::arg("buffers"),
           nb::arg("noop") = nb::none(), nb::arg("scale") = nb::none(),
           nb::arg("amax") = nb::none(), nb::arg("amax_columnwise") = nb::none(),
           nb::arg("seed") = 0, nb::arg("offset") = 0, nb::arg("threads") = 0,
           nb::sig(kTorchQuantizeSignature), kTorchQuantizeDoc)
      .def("dequantize", &TorchTensors::Dequantize, nb::arg("spec"), nb::arg("buffers"),
           nb::arg("out"), nb::arg("threads") = 0, nb::sig(kTorchDequantizeSignature),
           "Writes the values of the buffers to out, whose shape is that of the tensor.")
      .def("derive_columnwise", &TorchTensors::DeriveColumnwise, nb::arg("spec"), nb::arg("shape"),
           nb::arg("buffers"), nb::arg("threads") = 0, nb::sig(kTorchDeriveSignature),
           "Fills the columnwise buffers from the rowwise ones.")
      .def("swizzle", &TorchTensors::Swizzle, nb::arg("spec"), nb::arg("shape"), nb::arg("buffers"),
           nb::arg("out"), nb::arg("threads") = 0, nb::sig(kTorchSwizzleSignature),
           kTorchSwizzleDoc)
      .def("qgemm", &TorchTensors::Qgemm, nb::arg("a_spec"), nb::arg("a_shape"), nb::arg("a"),
           nb::arg("b_spec"), nb::arg("b_shape"), nb::arg("b"), nb::arg("layout"), nb::arg("out"),
           nb::arg("bias") = nb::none(), nb::arg("accumulate") = false, nb::arg("threads") = 0,
           nb::sig(kTorchQgemmSignature), kTorchQgemmDoc)
      .def("amax", &TorchTensors::Amax, nb::arg("x"), nb::arg("out"), nb::arg("threads") = 0,
           nb::sig("def amax(self, x: object, out: object, threads: int = 0) -> None"),
           "Writes the largest magnitude of x to out, float32 of one element.")
      .def("column_sums", &TorchTensors::ColumnSums, nb::arg("x"), nb::arg("out"),
           nb::arg("threads") = 0,
           nb::sig("def column_sums(self, x: object, out: object, threads: int = 0) -> None"),
           "Writes the sums of the columns of x, flattened, to out, float32 of one element each.")
      .def("update_delayed_scale", &TorchTensors::UpdateDelayedScale, nb::arg("amax_history"),
           nb::arg("scale"), nb::arg("fp8_max"), nb::arg("margin") = 0.0f, nb::arg("algo") = "max",
           nb::arg("reduced_amax") = nb::none(), nb::sig(kTorchUpdateDelayedScaleSignature),
           kTorchUpdateDelayedScaleDoc);
}

}  // namespace narrowfloat::python
