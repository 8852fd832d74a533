// SPDX-License-Identifier: Apache-2.0
// The verbs on PyTorch's tensors. Reads their addresses; neither links nor imports PyTorch.
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/docs.h"
#include "bindings/python/options.h"
#include "bindings/python/quantized_tensor.h"
#include "bindings/python/verbs.h"
#include "narrowfloat/numerics/hadamard.h"
#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/derive_columnwise.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/view_checks.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/plan_rule.h"

namespace narrowfloat::python {
namespace {

/// A tensor's memory, or a copy of it if its rows have holes.
struct InputMemory {
  TensorView view;
  nb::object copy;
};

/// Memory of buffers that the caller does not need.
using Scratch = std::vector<std::vector<float>>;

[[noreturn]] void ThrowNoMemory(const char* verb, std::string_view name) {
  throw InvalidArgument(fmt::format("{}: {} must have memory, got a tensor without", verb, name));
}

bool RowsAreContiguous(const TensorView& view) {
  return view.strides.empty() || view.shape.back() <= 1 ||
         view.strides.back() == static_cast<std::ptrdiff_t>(ItemSize(view.dtype));
}

/// Returns true for roles that a plan lists but a caller may leave out.
bool MayBeScratch(Role role) {
  return role == Role::kScale || role == Role::kAmaxRowwise || role == Role::kAmaxColumnwise;
}

/// The part of DLPack's exchange table (dlpack.h, version 1) up to the last function that is used.
struct DlpackExchange {
  std::uint32_t major, minor;
  DlpackExchange* older;
  void* allocate;
  void* to_managed;
  void* from_managed;
  int (*view)(void* object, nb::dlpack::dltensor* out);  // a view; 0 or a Python error
};

/// A view of a tensor, valid while it lives: sizes and strides, these in items, are its own.
struct TensorMemory {
  std::byte* data;
  DType dtype;
  std::span<const std::int64_t> sizes, strides;

  std::size_t Count() const {
    const auto count =
        std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
    return static_cast<std::size_t>(count);
  }
  bool IsDense() const {
    std::int64_t step = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      if (sizes[i] == 0) return true;
      if (sizes[i] > 1 && strides[i] != step) return false;
      step *= sizes[i];
    }
    return true;
  }
};

/// PyTorch's side of the exchange. Set once and never changed.
class TorchTensors {
 public:
  explicit TorchTensors(const nb::object& torch) : tensor_type_(torch.attr("Tensor")) {
    constexpr std::uint32_t kMajor = 1;
    const nb::object capsule =
        nb::getattr(tensor_type_, "__dlpack_c_exchange_api__", nb::object(nb::none()));
    auto* exchange = static_cast<const DlpackExchange*>(
        capsule.is_none() ? nullptr : PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    while (exchange != nullptr && exchange->major > kMajor) exchange = exchange->older;
    if (exchange == nullptr || exchange->view == nullptr) {
      PyErr_Clear();
      throw Unsupported("import: narrowfloat needs PyTorch 2.11 or later, got " +
                        std::string(nb::str(nb::object(torch.attr("__version__"))).c_str()));
    }
    view_ = exchange->view;
  }

  void Quantize(const QuantSpec& spec, nb::handle x, const nb::tuple& buffers, nb::handle noop,
                nb::handle scale, nb::handle amax, nb::handle amax_columnwise, std::uint64_t seed,
                std::uint64_t offset, int threads) const;
  void Dequantize(const QuantSpec& spec, const nb::tuple& buffers, nb::handle out,
                  int threads) const;
  void DeriveColumnwise(const QuantSpec& spec, const nb::object& shape, const nb::tuple& buffers,
                        int threads) const;
  void Qgemm(const QuantSpec& a_spec, const nb::object& a_shape, const nb::tuple& a,
             const QuantSpec& b_spec, const nb::object& b_shape, const nb::tuple& b,
             std::string_view layout, nb::handle out, nb::handle bias, bool accumulate,
             int threads) const;
  void Amax(nb::handle x, nb::handle out, int threads) const;
  void ColumnSums(nb::handle x, nb::handle out, int threads) const;

 private:
  TensorMemory MemoryOf(const char* verb, std::string_view name, nb::handle tensor) const;
  TensorView View(const char* verb, std::string_view name, nb::handle tensor) const;
  InputMemory ViewInput(const char* verb, nb::handle tensor) const;
  TensorView ViewDense(const char* verb, std::string_view name, nb::handle tensor, DType dtype,
                       const Shape& shape) const;
  float ItemOf(const char* verb, std::string_view name, nb::handle tensor) const;
  void Bind(const char* verb, const nb::tuple& buffers, QuantizedView& view,
            Scratch* scratch) const;

  nb::object tensor_type_;
  int (*view_)(void* object, nb::dlpack::dltensor* out) = nullptr;
};

/// Errors: TypeError for another object or type; Unsupported on another device; InvalidArgument
/// for a tensor that has elements but no memory, as wrappers have.
TensorMemory TorchTensors::MemoryOf(const char* verb, std::string_view name,
                                    nb::handle tensor) const {
  if (PyObject_IsInstance(tensor.ptr(), tensor_type_.ptr()) != 1) {
    throw nb::type_error(fmt::format("{}: {} must be a torch.Tensor, got {}", verb, name,
                                     nb::type_name(tensor.type()).c_str())
                             .c_str());
  }
  nb::dlpack::dltensor memory;
  const bool has_memory = view_(tensor.ptr(), &memory) == 0;
  if (!has_memory || memory.device.device_type != nb::device::cpu::value) {
    // Devices that DLPack does not know, such as meta, export nothing.
    PyErr_Clear();
    const nb::object device = tensor.attr("device");
    if (nb::cast<std::string>(device.attr("type")) == "cpu") ThrowNoMemory(verb, name);
    throw Unsupported(fmt::format("{}: {} must be on the CPU, got a tensor on {}", verb, name,
                                  nb::str(device).c_str()));
  }
  const std::optional<DType> dtype = DTypeOfDlpack(memory.dtype);
  if (!dtype) {
    throw nb::type_error(fmt::format("{}: {} must be uint8, {}, got {}", verb, name,
                                     FloatTypeNames(),
                                     nb::str(nb::object(tensor.attr("dtype"))).c_str())
                             .c_str());
  }
  const auto rank = static_cast<std::size_t>(memory.ndim);
  const TensorMemory tensor_memory{static_cast<std::byte*>(memory.data) + memory.byte_offset,
                                   *dtype,
                                   {memory.shape, rank},
                                   {memory.strides, rank}};
  if (memory.data == nullptr && tensor_memory.Count() != 0) ThrowNoMemory(verb, name);
  return tensor_memory;
}

TensorView TorchTensors::View(const char* verb, std::string_view name, nb::handle tensor) const {
  const TensorMemory memory = MemoryOf(verb, name, tensor);
  TensorView view{
      memory.data, memory.dtype, {memory.sizes.begin(), memory.sizes.end()}, {}, Device::kCpu};
  if (memory.IsDense()) return view;
  view.strides.assign(memory.strides.begin(), memory.strides.end());
  for (std::ptrdiff_t& stride : view.strides)
    stride *= static_cast<std::ptrdiff_t>(ItemSize(memory.dtype));
  return view;
}

InputMemory TorchTensors::ViewInput(const char* verb, nb::handle tensor) const {
  InputMemory held{View(verb, "the input", tensor), {}};
  if (RowsAreContiguous(held.view)) return held;
  held.copy = tensor.attr("contiguous")();
  held.view = View(verb, "the input", held.copy);
  return held;
}

/// Views a tensor whose items are stored as those of a dense one of `shape`: buffers of another
/// rank, such as flattened codes, are the same memory.
TensorView TorchTensors::ViewDense(const char* verb, std::string_view name, nb::handle tensor,
                                   DType dtype, const Shape& shape) const {
  const TensorMemory memory = MemoryOf(verb, name, tensor);
  if (memory.dtype != dtype || !memory.IsDense() || memory.Count() != FlattenShape(shape).Size()) {
    throw InvalidArgument(fmt::format("{}: {} must be {} of {} and contiguous, got {} of {}", verb,
                                      name, DTypeName(dtype), ShapeText(shape),
                                      DTypeName(memory.dtype),
                                      ShapeText({memory.sizes.begin(), memory.sizes.end()})));
  }
  return {memory.data, dtype, shape, {}, Device::kCpu};
}

float TorchTensors::ItemOf(const char* verb, std::string_view name, nb::handle tensor) const {
  float item = 0.0f;
  std::memcpy(&item, ViewDense(verb, name, tensor, DType::kFloat32, {1}).data, sizeof item);
  return item;
}

/// Views the planned buffers. Allocates those without a tensor in `scratch`, if given.
void TorchTensors::Bind(const char* verb, const nb::tuple& buffers, QuantizedView& view,
                        Scratch* scratch) const {
  if (buffers.size() != kRoleCount) {
    throw InvalidArgument(
        fmt::format("{}: needs {} buffers, got {}", verb, kRoleCount, buffers.size()));
  }
  for (const BufferPlan& planned : PlanQuantize(view.spec, view.shape)) {
    const nb::handle tensor = buffers[static_cast<std::size_t>(planned.role)];
    if (!tensor.is_none()) {
      view[planned.role] =
          ViewDense(verb, RoleName(planned.role), tensor, planned.dtype, planned.shape);
    } else if (scratch != nullptr && MayBeScratch(planned.role)) {
      scratch->emplace_back(FlattenShape(planned.shape).Size());
      view[planned.role] = {reinterpret_cast<std::byte*>(scratch->back().data()),
                            planned.dtype,
                            planned.shape,
                            {},
                            Device::kCpu};
    }
  }
}

/// Raises an amax of delayed scaling: steps that share a row of the history keep the largest.
void AccumulateAmax(const TensorView& amax, float measured) {
  float old = 0.0f;
  std::memcpy(&old, amax.data, sizeof old);
  if (measured > old) std::memcpy(amax.data, &measured, sizeof measured);
}

void TorchTensors::Quantize(const QuantSpec& spec, nb::handle x, const nb::tuple& buffers,
                            nb::handle noop, nb::handle scale, nb::handle amax,
                            nb::handle amax_columnwise, std::uint64_t seed, std::uint64_t offset,
                            int threads) const {
  constexpr const char* kVerb = "quantize";
  const float skip = noop.is_none() ? 0.0f : ItemOf(kVerb, "noop_flag", noop);
  const Execution execution{.threads = threads, .noop = &skip};
  const InputMemory in = ViewInput(kVerb, x);
  QuantizedView out{spec, in.view.shape, {}};
  if (!scale.is_none()) out.spec.scale = ItemOf(kVerb, "scale", scale);
  if (!amax.is_none()) out.spec.amax = ItemOf(kVerb, "amax", amax);
  if (!amax_columnwise.is_none())
    out.spec.amax_columnwise = ItemOf(kVerb, "amax_columnwise", amax_columnwise);
  if (spec.stochastic_rounding) {
    out.spec.seed = seed;
    out.spec.offset = offset;
  }
  Scratch scratch;
  scratch.reserve(kRoleCount);
  Bind(kVerb, buffers, out, &scratch);
  if (execution.IsNoop() || FlattenShape(out.shape).Size() == 0) return;
  TensorView history = out[Role::kAmaxRowwise];
  float measured = 0.0f;
  const bool accumulate = out.spec.scale.has_value() && history.data != nullptr;
  if (accumulate) out[Role::kAmaxRowwise].data = reinterpret_cast<std::byte*>(&measured);
  const nb::gil_scoped_release unlocked;
  narrowfloat::Quantize(in.view, out, execution);
  if (accumulate) AccumulateAmax(history, measured);
}

void TorchTensors::Dequantize(const QuantSpec& spec, const nb::tuple& buffers, nb::handle out,
                              int threads) const {
  constexpr const char* kVerb = "dequantize";
  const TensorView values = View(kVerb, "the output", out);
  QuantizedView in{spec, values.shape, {}};
  Bind(kVerb, buffers, in, nullptr);
  const nb::gil_scoped_release unlocked;
  narrowfloat::Dequantize(in, values, {.threads = threads});
}

void TorchTensors::DeriveColumnwise(const QuantSpec& spec, const nb::object& shape,
                                    const nb::tuple& buffers, int threads) const {
  constexpr const char* kVerb = "derive_columnwise";
  QuantizedView view{spec, ParseShape(kVerb, shape), {}};
  Bind(kVerb, buffers, view, nullptr);
  const nb::gil_scoped_release unlocked;
  narrowfloat::DeriveColumnwise(view, view, {.threads = threads});
}

void TorchTensors::Qgemm(const QuantSpec& a_spec, const nb::object& a_shape, const nb::tuple& a,
                         const QuantSpec& b_spec, const nb::object& b_shape, const nb::tuple& b,
                         std::string_view layout, nb::handle out, nb::handle bias, bool accumulate,
                         int threads) const {
  constexpr const char* kVerb = "qgemm";
  QuantizedView first{a_spec, ParseShape(kVerb, a_shape), {}};
  QuantizedView second{b_spec, ParseShape(kVerb, b_shape), {}};
  Bind(kVerb, a, first, nullptr);
  Bind(kVerb, b, second, nullptr);
  GemmOptions options{.layout = FindGemmLayout(layout), .mode = GemmMode::kReproducible};
  if (accumulate) options.output = GemmOutput::kAccumulate;
  if (!bias.is_none()) options.bias = View(kVerb, "bias", bias);
  const TensorView result = View(kVerb, "out", out);
  const nb::gil_scoped_release unlocked;
  narrowfloat::Qgemm(first, second, result, options, {.threads = threads});
}

void TorchTensors::Amax(nb::handle x, nb::handle out, int threads) const {
  constexpr const char* kVerb = "amax";
  const InputMemory in = ViewInput(kVerb, x);
  const TensorView result = ViewDense(kVerb, "the output", out, DType::kFloat32, {1});
  const nb::gil_scoped_release unlocked;
  const float amax = narrowfloat::Amax(in.view, {.threads = threads});
  std::memcpy(result.data, &amax, sizeof amax);
}

void TorchTensors::ColumnSums(nb::handle x, nb::handle out, int threads) const {
  constexpr const char* kVerb = "column_sums";
  const InputMemory in = ViewInput(kVerb, x);
  const Shape columns{static_cast<std::int64_t>(FlattenShape(in.view.shape).cols)};
  const TensorView sums = ViewDense(kVerb, "the output", out, DType::kFloat32, columns);
  const nb::gil_scoped_release unlocked;
  narrowfloat::ColumnSums(in.view, sums, {.threads = threads});
}

/// Returns [(role, dtype, shape, role that holds the memory)], as PlanQuantize lists them.
nb::list PlanOf(const QuantSpec& spec, const nb::object& shape) {
  nb::list plan;
  for (const BufferPlan& buffer : PlanQuantize(spec, ParseShape("plan", shape))) {
    plan.append(nb::make_tuple(RoleName(buffer.role), DTypeName(buffer.dtype),
                               ShapeTuple(buffer.shape), RoleName(buffer.storage)));
  }
  return plan;
}

/// Returns [(role, dtype, [(dimensions, divisor, multiple)], role that holds the memory)], one rule
/// size, as PlanRules lists them.
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

/// Returns the shape of the part of a direction's stored scales that has content, without padding.
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

bool HasWholeBlocks(const QuantSpec& spec, const nb::object& shape) {
  const MatrixShape matrix = FlattenShape(ParseShape("quantize", shape));
  const std::size_t block = std::max<std::size_t>(spec.scheme->block.cols, 1);
  return matrix.rows % block == 0 && matrix.cols % block == 0;
}

std::vector<std::string> RoleNames() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kRoleCount; ++i) names.emplace_back(RoleName(static_cast<Role>(i)));
  return names;
}

}  // namespace

void RegisterTorchTensors(nb::module_& module) {
  module.def("buffer_roles", &RoleNames, "Roles of buffers, in the order that calls take them.");
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
           "Shape of the stored scales of a direction without their padding.")
      .def("has_whole_blocks", &HasWholeBlocks, nb::arg("shape"),
           nb::sig("def has_whole_blocks(self, shape: object) -> bool"),
           "Whether rows and columns of shape are multiples of the block.");
  module.def("make_spec", &SpecOf, nb::arg("scheme"), nb::arg("rowwise") = true,
             nb::arg("columnwise") = false, nb::arg("options"), nb::sig(kMakeSpecSignature),
             "The QuantSpec of a scheme, directions and the options of quantize().");
  module.def("parse_spec", &ParseQuantSpec, nb::arg("text"), "The QuantSpec of a text form.");
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
           "Writes the sums of the columns of x, flattened, to out, float32 of one element each.");
}

}  // namespace narrowfloat::python
