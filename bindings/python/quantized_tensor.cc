// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/quantized_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "bindings/python/docs.h"
#include "bindings/python/verbs.h"
#include "narrowfloat/ops/view_checks.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::python {
namespace {

constexpr std::string_view kBufferTypes = "uint8 or float32";
constexpr std::array kDataRoles = {Role::kRowwiseData, Role::kColumnwiseData};
constexpr std::array kScaleInvRoles = {Role::kRowwiseScaleInv, Role::kColumnwiseScaleInv};

nb::object& ArrayOf(QuantizedTensor& tensor, Role role) {
  return tensor.arrays[static_cast<std::size_t>(role)];
}

std::optional<Role> FindRole(std::string_view name) {
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (RoleName(static_cast<Role>(i)) == name) return static_cast<Role>(i);
  }
  return std::nullopt;
}

/// Stores each array under its role. Errors: TypeError if `buffers` is not a mapping of names to
/// arrays; InvalidArgument for an unknown name.
void ReadBuffers(QuantizedTensor& tensor, const nb::object& buffers) {
  if (!nb::hasattr(buffers, "items")) {
    throw nb::type_error(fmt::format("from_buffers: buffers must be a mapping of names to arrays, "
                                     "got {}",
                                     nb::type_name(buffers.type()).c_str())
                             .c_str());
  }
  for (const nb::handle item : buffers.attr("items")()) {
    const nb::object name = item[0], array = item[1];
    const auto role =
        nb::isinstance<nb::str>(name) ? FindRole(nb::cast<std::string>(name)) : std::nullopt;
    if (!role) {
      std::vector<std::string_view> names;
      for (std::size_t i = 0; i < kRoleCount; ++i) names.push_back(RoleName(static_cast<Role>(i)));
      throw InvalidArgument(fmt::format("from_buffers: unknown buffer {}; there are: {}",
                                        nb::repr(name).c_str(), fmt::join(names, ", ")));
    }
    ArrayOf(tensor, *role) = AsNumPyArray({"from_buffers", RoleName(*role), kBufferTypes}, array);
  }
}

/// Returns true if a direction has both codes and scales, false if it has neither; else throws.
bool HasDirection(QuantizedTensor& tensor, std::size_t direction) {
  const bool data = ArrayOf(tensor, kDataRoles[direction]).is_valid();
  const bool scale_inv = ArrayOf(tensor, kScaleInvRoles[direction]).is_valid();
  if (data == scale_inv) return data;
  const Role present = data ? kDataRoles[direction] : kScaleInvRoles[direction];
  const Role absent = data ? kScaleInvRoles[direction] : kDataRoles[direction];
  throw InvalidArgument(fmt::format("from_buffers: {} needs {}, which is missing",
                                    RoleName(present), RoleName(absent)));
}

void CheckGivenBuffers(const QuantizedTensor& tensor) {
  const TensorMemory held = ViewBuffers("from_buffers", tensor);
  const std::vector<BufferPlan> plan = PlanQuantize(tensor.spec, tensor.shape);
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (!tensor.arrays[i].is_valid()) continue;
    const auto role = static_cast<Role>(i);
    const ConstTensorView buffer = held.view.buffers[i];
    const auto planned = std::ranges::find(plan, role, &BufferPlan::role);
    if (planned == plan.end()) {
      throw InvalidArgument(fmt::format("from_buffers: buffers must be those of {}, got {}",
                                        tensor.spec.scheme->name, RoleName(role)));
    }
    if (buffer.dtype != planned->dtype) {
      throw nb::type_error(fmt::format("from_buffers: {} must be {}, got {}", RoleName(role),
                                       DTypeName(planned->dtype), DTypeName(buffer.dtype))
                               .c_str());
    }
    if (buffer.shape != planned->shape) {
      throw InvalidArgument(fmt::format("from_buffers: {} must have shape {}, got {}",
                                        RoleName(role), ShapeText(planned->shape),
                                        ShapeText(buffer.shape)));
    }
    if (!IsContiguous(buffer)) {
      throw InvalidArgument(fmt::format("from_buffers: {} must be C-contiguous", RoleName(role)));
    }
  }
}

nb::dict BufferDict(const QuantizedTensor& tensor) {
  nb::dict buffers;
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    const std::string name(RoleName(static_cast<Role>(i)));
    if (tensor.arrays[i].is_valid()) buffers[name.c_str()] = tensor.arrays[i];
  }
  return buffers;
}

std::string Repr(const QuantizedTensor& tensor) {
  return fmt::format("QuantizedTensor(spec='{}', shape={}, dtype={})", PrintQuantSpec(tensor.spec),
                     nb::repr(ShapeTuple(tensor.shape)).c_str(), DTypeName(tensor.dtype));
}

}  // namespace

QuantizedTensor& ParseTensor(const char* verb, const char* name, const nb::object& object) {
  if (nb::isinstance<QuantizedTensor>(object)) {
    if (nb::inst_ready(object)) return *nb::inst_ptr<QuantizedTensor>(object);
    throw nb::type_error(
        fmt::format("{}: {} is a QuantizedTensor whose __init__ did not run", verb, name).c_str());
  }
  throw nb::type_error(fmt::format("{}: {} must be a QuantizedTensor, got {}", verb, name,
                                   nb::type_name(object.type()).c_str())
                           .c_str());
}

MatrixShape ContentShape(ScaleGrid grid) {
  grid.padded_lines = grid.lines;
  grid.padded_blocks = grid.blocks;
  return grid.StoredShape();
}

TensorMemory ViewBuffers(const char* verb, const QuantizedTensor& tensor) {
  TensorMemory held{{tensor.spec, tensor.shape, {}}, {}};
  held.arrays.reserve(kRoleCount);
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (!tensor.arrays[i].is_valid()) continue;
    held.arrays.push_back(
        ViewArray({verb, RoleName(static_cast<Role>(i)), kBufferTypes}, tensor.arrays[i]));
    held.view.buffers[i] = held.arrays.back().view;
  }
  return held;
}

TensorMemory ViewWritableBuffers(const char* verb, const QuantizedTensor& tensor) {
  TensorMemory held = ViewBuffers(verb, tensor);
  std::size_t next = 0;
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (!tensor.arrays[i].is_valid() || held.arrays[next++].writable) continue;
    throw InvalidArgument(
        fmt::format("{}: {} of out must be writable", verb, RoleName(static_cast<Role>(i))));
  }
  return held;
}

QuantizedTensor NewTensor(const QuantSpec& spec, const Shape& shape, DType dtype, Fill fill) {
  QuantizedTensor tensor{spec, shape, dtype, {}};
  for (const BufferPlan& buffer : PlanQuantize(spec, shape)) {
    nb::object& array = ArrayOf(tensor, buffer.role);
    array = buffer.storage == buffer.role ? NewArray(buffer.dtype, buffer.shape)
                                          : ArrayOf(tensor, buffer.storage);
    if (fill == Fill::kZero)
      ZeroArray(ViewArray({"quantize", RoleName(buffer.role), kBufferTypes}, array));
  }
  return tensor;
}

QuantizedTensor FromBuffers(std::string_view scheme, const nb::object& shape,
                            const nb::object& buffers, const nb::object& dtype,
                            const nb::kwargs& options) {
  QuantizedTensor tensor;
  tensor.shape = ParseShape("from_buffers", shape);
  tensor.dtype = ParseFloatDType("from_buffers", dtype);
  ReadBuffers(tensor, buffers);
  // Both directions share one scale of the whole tensor.
  nb::object& columnwise_scale_inv = ArrayOf(tensor, Role::kColumnwiseScaleInv);
  if (ParseQuantSpec(scheme).scheme->HasOneScale() && !columnwise_scale_inv.is_valid() &&
      ArrayOf(tensor, Role::kColumnwiseData).is_valid()) {
    columnwise_scale_inv = ArrayOf(tensor, Role::kRowwiseScaleInv);
  }
  tensor.spec = ParseOptions("from_buffers", scheme, HasDirection(tensor, 0),
                             HasDirection(tensor, 1), options, OptionScope::kSpecOnly)
                    .spec;
  tensor.spec.rowwise = HasDirection(tensor, 0);
  tensor.spec.columnwise = HasDirection(tensor, 1);
  CheckGivenBuffers(tensor);
  return tensor;
}

Shape ParseShape(const char* verb, const nb::object& shape, const char* name) {
  Shape parsed;
  const auto append = [&](nb::handle dimension) {
    const auto index = nb::steal(PyNumber_Index(dimension.ptr()));
    const auto size = index.is_valid() ? PyLong_AsLongLong(index.ptr()) : -1;
    if (size == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      throw nb::type_error(fmt::format("{}: {} must be an int or a sequence of ints, got {}", verb,
                                       name, nb::repr(shape).c_str())
                               .c_str());
    }
    parsed.push_back(size);
  };
  if (PySequence_Check(shape.ptr()) == 0) {
    append(shape);
  } else {
    for (const nb::handle dimension : shape) append(dimension);
  }
  return parsed;
}

namespace {

nb::tuple StateOf(const QuantizedTensor& tensor) {
  return nb::make_tuple(PrintQuantSpec(tensor.spec), ShapeTuple(tensor.shape),
                        DTypeObject(tensor.dtype), BufferDict(tensor));
}

/// Returns the constructor call for pickles of every protocol; object's own needs protocol 2.
nb::tuple ReduceTensor(nb::handle self) {
  return nb::make_tuple(nb::module_::import_("copyreg").attr("__newobj__"),
                        nb::make_tuple(self.type()), self.attr("__getstate__")());
}

/// Constructs `tensor` in place. Requires: it has no value yet.
/// Errors: TypeError if `state` is not a result of __getstate__.
void SetState(QuantizedTensor& tensor, const nb::tuple& state) {
  if (nb::len(state) != 4 || !nb::isinstance<nb::str>(state[0])) {
    throw nb::type_error(fmt::format("pickle: the state must be (spec, shape, dtype, buffers), got "
                                     "{}",
                                     nb::repr(state).c_str())
                             .c_str());
  }
  QuantizedTensor made;
  made.spec = ParseQuantSpec(nb::cast<std::string>(state[0]));
  made.shape = ParseShape("pickle", state[1]);
  made.dtype = ParseFloatDType("pickle", state[2]);
  ReadBuffers(made, state[3]);
  CheckGivenBuffers(made);
  new (&tensor) QuantizedTensor(std::move(made));
}

}  // namespace

void RegisterQuantizedTensor(nb::module_& module) {
  nb::class_<QuantizedTensor>(module, "QuantizedTensor", kQuantizedTensorDoc)
      .def_prop_ro(
          "scheme", [](const QuantizedTensor& self) { return std::string(self.spec.scheme->name); },
          "Name of the scheme, one of schemes().")
      .def_prop_ro(
          "shape", [](const QuantizedTensor& self) { return ShapeTuple(self.shape); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "Shape of the tensor that was quantized.")
      .def_prop_ro(
          "dtype", [](const QuantizedTensor& self) { return DTypeObject(self.dtype); },
          nb::sig("def dtype(self) -> numpy.dtype"), "Nominal dtype: what dequantize() returns.")
      .def_prop_ro(
          "spec", [](const QuantizedTensor& self) { return PrintQuantSpec(self.spec); },
          "Text form of scheme, directions and options, defaults left out.")
      .def_prop_ro("buffers", &BufferDict, nb::sig("def buffers(self) -> dict[str, numpy.ndarray]"),
                   kBuffersDoc)
      .def("dequantize", &DequantizeTensor, nb::arg("dtype") = nb::none(),
           nb::arg("out") = nb::none(), nb::arg("options"),
           nb::sig("def dequantize(self, dtype: object = None, out: object = None, **options: "
                   "object) -> numpy.ndarray"),
           "narrowfloat.dequantize(self, dtype, out).")
      .def(
          "__array__",
          [](const QuantizedTensor& self, const nb::args&, const nb::kwargs&) -> nb::object {
            throw nb::type_error(
                fmt::format("{} must become an array by dequantize()", Repr(self)).c_str());
          },
          nb::sig("def __array__(self, *args: object, **kwargs: object) -> typing.NoReturn"),
          "Refuses NumPy's conversion, which would make an array of objects.")
      .def("__getstate__", &StateOf)
      .def("__setstate__", &SetState)
      .def("__reduce__", &ReduceTensor)
      .def("__repr__", &Repr);
}

}  // namespace narrowfloat::python
