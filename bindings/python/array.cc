// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/array.h"

#include <fmt/format.h>
#include <nanobind/ndarray.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "narrowfloat/ops/view_checks.h"
#include "narrowfloat/tensor/huge_pages.h"

namespace narrowfloat::python {
namespace {

[[noreturn]] void ThrowNoArray(const Argument& argument, nb::handle object) {
  throw nb::type_error(
      fmt::format("{}: {} must be a NumPy array or a CPU object with the buffer or DLPack "
                  "protocol, got {}",
                  argument.verb, argument.name, nb::type_name(object.type()).c_str())
          .c_str());
}

[[noreturn]] void ThrowWrongType(const Argument& argument, std::string_view got) {
  throw nb::type_error(fmt::format("{}: {} must be {} in native byte order, got {}", argument.verb,
                                   argument.name, argument.types, got)
                           .c_str());
}

std::optional<DType> DTypeOfFormat(const char* format) {
  std::string_view text = format == nullptr ? "B" : format;
  if (!text.empty() && (text[0] == '@' || text[0] == '=' || text[0] == '<')) text.remove_prefix(1);
  if (text == "f") return DType::kFloat32;
  if (text == "e") return DType::kFloat16;
  if (text == "B") return DType::kUInt8;
  return std::nullopt;
}

void ViewBuffer(ArrayView& array, DType dtype) {
  const Py_buffer& buffer = *array.buffer;
  array.view.data = static_cast<std::byte*>(buffer.buf);
  array.view.dtype = dtype;
  array.view.shape.assign(buffer.shape, buffer.shape + buffer.ndim);
  if (buffer.strides != nullptr) {
    array.view.strides.assign(buffer.strides, buffer.strides + buffer.ndim);
  } else {  // ctypes: contiguous
    array.view.strides.resize(array.view.shape.size());
    auto step = static_cast<std::ptrdiff_t>(ItemSize(dtype));
    for (std::size_t i = array.view.shape.size(); i-- > 0; step *= array.view.shape[i])
      array.view.strides[i] = step;
  }
  array.writable = buffer.readonly == 0;
}

/// Views a NumPy array. Reads the type from the dtype: NumPy exports the memory of bfloat16 arrays,
/// but without a *format*. Errors: TypeError for another dtype.
bool ViewNumPy(const Argument& argument, nb::handle object, ArrayView& array) {
  const auto dtype = nb::steal(PyObject_GetAttr(object.ptr(), Np().dtype_name.ptr()));
  if (!dtype.is_valid()) nb::raise_python_error();
  const auto known = DTypeOfObject(dtype);
  if (!known) ThrowWrongType(argument, nb::str(dtype).c_str());
  if (!array.buffer.Acquire(object, PyBUF_STRIDES)) return false;
  ViewBuffer(array, *known);
  return true;
}

bool ViewProtocol(const Argument& argument, nb::handle object, ArrayView& array) {
  if (!array.buffer.Acquire(object, PyBUF_STRIDES | PyBUF_FORMAT)) return false;
  const auto known = DTypeOfFormat(array.buffer->format);
  if (!known) ThrowWrongType(argument, fmt::format("items of format '{}'", array.buffer->format));
  ViewBuffer(array, *known);
  return true;
}

void ViewTensor(const Argument& argument, ArrayView& array) {
  const nb::ndarray<nb::ro>& tensor = array.tensor;
  const auto known = DTypeOfDlpack(tensor.dtype());
  if (!known) {
    ThrowWrongType(argument, fmt::format("items of DLPack type {} with {} bits",
                                         tensor.dtype().code, tensor.dtype().bits));
  }
  array.view.data = const_cast<std::byte*>(static_cast<const std::byte*>(tensor.data()));
  array.view.dtype = *known;
  const auto item = static_cast<std::ptrdiff_t>(ItemSize(*known));
  for (std::size_t i = 0; i < tensor.ndim(); ++i) {
    array.view.shape.push_back(static_cast<std::int64_t>(tensor.shape(i)));
    array.view.strides.push_back(tensor.stride(i) * item);
  }
}

/// Returns true for a PyTorch tensor with values that are the negated values of its memory, such as
/// the imaginary part of a conjugate. DLPack does not have this information.
bool IsNegated(nb::handle object) {
  const nb::object is_neg = nb::getattr(object, "is_neg", nb::object(nb::none()));
  return PyCallable_Check(is_neg.ptr()) != 0 && is_neg().is(nb::handle(Py_True));
}

/// Views objects without the buffer protocol: tensors of frameworks, which are not imported. Copies
/// a negated tensor; it is not writable.
bool ViewDlpack(const Argument& argument, nb::handle object, ArrayView& array) {
  if (IsNegated(object)) {
    const bool held = ViewDlpack(argument, object.attr("resolve_neg")(), array);
    array.writable = false;
    return held;
  }
  nb::ndarray<nb::device::cpu> writable;
  nb::ndarray<nb::ro, nb::device::cpu> readable;
  array.writable = nb::try_cast(object, writable, false);
  if (array.writable) {
    array.tensor = nb::ndarray<nb::ro>(writable);
  } else if (nb::try_cast(object, readable, false)) {
    array.tensor = nb::ndarray<nb::ro>(readable);
  } else {
    return false;
  }
  ViewTensor(argument, array);
  return true;
}

nb::object NewLargeArray(DType dtype, const Shape& shape, std::size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kHugePage, bytes) != 0) throw std::bad_alloc();
  AdviseHugePages(static_cast<std::byte*>(memory), bytes);
  const nb::capsule owner(memory, [](void* pointer) noexcept { std::free(pointer); });
  const std::size_t length[] = {bytes};
  const nb::ndarray<nb::numpy, std::uint8_t> flat(memory, 1, length, owner);
  return nb::cast(flat, nb::rv_policy::reference)
      .attr("view")(DTypeObject(dtype))
      .attr("reshape")(ShapeTuple(shape));
}

}  // namespace

std::optional<DType> DTypeOfDlpack(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto code = static_cast<Code>(dtype.code);
  if (dtype.lanes != 1) return std::nullopt;
  if (code == Code::Float && dtype.bits == 32) return DType::kFloat32;
  if (code == Code::Float && dtype.bits == 16) return DType::kFloat16;
  if (code == Code::Bfloat && dtype.bits == 16) return DType::kBFloat16;
  if (code == Code::UInt && dtype.bits == 8) return DType::kUInt8;
  return std::nullopt;
}

AcquiredBuffer::AcquiredBuffer(AcquiredBuffer&& other) noexcept
    : buffer_(std::exchange(other.buffer_, {})) {}

AcquiredBuffer::~AcquiredBuffer() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

bool AcquiredBuffer::Acquire(nb::handle object, int flags) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
  if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) == 0) return true;
  PyErr_Clear();
  buffer_ = {};
  return false;
}

ArrayView ViewArray(const Argument& argument, nb::handle object) {
  // A NumPy scalar counts as an array without dimensions. A bfloat16 scalar exports no buffer.
  if (nb::isinstance(object, Np().scalar_type)) return ViewArray(argument, Np().asarray(object));
  if (IsMasked(object)) {
    throw nb::type_error(fmt::format("{}: {} must not be a masked array, whose mask would be "
                                     "ignored; pass its filled()",
                                     argument.verb, argument.name)
                             .c_str());
  }
  ArrayView array;
  const bool held = IsArray(object) ? ViewNumPy(argument, object, array)
                                    : ViewProtocol(argument, object, array) ||
                                          ViewDlpack(argument, object, array);
  if (!held) ThrowNoArray(argument, object);
  return array;
}

ArrayView ViewArrayOf(DType dtype, const char* verb, std::string_view name, nb::handle object) {
  const Argument argument{verb, name, DTypeName(dtype)};
  ArrayView array = ViewArray(argument, object);
  if (array.view.dtype != dtype) ThrowWrongType(argument, DTypeName(array.view.dtype));
  return array;
}

ArrayView ViewInput(const char* verb, nb::handle object, std::string_view name) {
  const Argument argument{verb, name, FloatTypeNames()};
  ArrayView array = ViewArray(argument, object);
  const TensorView& view = array.view;
  if (!IsFloat(view.dtype)) ThrowWrongType(argument, DTypeName(view.dtype));
  if (view.shape.empty() || view.shape.back() <= 1) return array;
  if (view.strides.back() == static_cast<std::ptrdiff_t>(ItemSize(view.dtype))) return array;
  return ViewArray(argument, Np().ascontiguousarray(AsNumPyArray(argument, object)));
}

ArrayView ViewOutput(const char* verb, nb::handle object, DType dtype, const Shape& shape,
                     std::string_view name) {
  ArrayView array = ViewArray({verb, name, FloatTypeNames()}, object);
  const TensorView& view = array.view;
  const auto fail = [&](const std::string& message) {
    throw nb::value_error(fmt::format("{}: {} must {}", verb, name, message).c_str());
  };
  if (view.dtype != dtype) {
    fail(fmt::format("be {}, got {}", DTypeName(dtype), DTypeName(view.dtype)));
  }
  if (view.shape != shape) {
    fail(fmt::format("have shape {}, got {}", ShapeText(shape), ShapeText(view.shape)));
  }
  if (!array.writable) fail("be writable");
  if (!IsContiguous(array.Input())) fail("be C-contiguous");
  return array;
}

nb::object AsNumPyArray(const Argument& argument, nb::handle object) {
  if (IsArray(object)) return nb::borrow(object);
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    auto memory = nb::steal(PyMemoryView_FromObject(object.ptr()));
    if (memory.is_valid()) return Np().asarray(memory);
    PyErr_Clear();
  }
  ArrayView array;
  if (!ViewDlpack(argument, object, array)) ThrowNoArray(argument, object);
  // NumPy's DLPack does not support bfloat16: passes the items as integers of the same size.
  const std::size_t rank = array.view.shape.size(), item = ItemSize(array.view.dtype);
  std::vector<std::size_t> shape(array.view.shape.begin(), array.view.shape.end());
  std::vector<std::int64_t> strides;
  for (const std::ptrdiff_t stride : array.view.strides)
    strides.push_back(stride / static_cast<std::ptrdiff_t>(item));
  const nb::dlpack::dtype bits{static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt),
                               static_cast<std::uint8_t>(8 * item), 1};
  const nb::capsule owner(new nb::ndarray<nb::ro>(array.tensor), [](void* tensor) noexcept {
    delete static_cast<nb::ndarray<nb::ro>*>(tensor);
  });
  const nb::ndarray<nb::numpy> borrowed(array.view.data, rank, shape.data(), owner, strides.data(),
                                        bits);
  nb::object made =
      nb::cast(borrowed, nb::rv_policy::reference).attr("view")(DTypeObject(array.view.dtype));
  if (!array.writable) made.attr("setflags")(nb::arg("write") = false);
  return made;
}

nb::object NewArray(DType dtype, const Shape& shape) {
  const std::size_t bytes = FlattenShape(shape).Size() * ItemSize(dtype);
  if (bytes >= kHugePage) return NewLargeArray(dtype, shape, bytes);
  return Np().empty(ShapeTuple(shape), DTypeObject(dtype));
}

std::span<std::byte> BytesOf(const ArrayView& array) {
  return {array.view.data, FlattenShape(array.view.shape).Size() * ItemSize(array.view.dtype)};
}

void ZeroArray(const ArrayView& array) {
  const std::span<std::byte> bytes = BytesOf(array);
  std::memset(bytes.data(), 0, bytes.size());
}

nb::tuple ShapeTuple(const Shape& shape) {
  auto tuple = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (std::size_t i = 0; i < shape.size(); ++i) {
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i]));
  }
  return tuple;
}

}  // namespace narrowfloat::python
