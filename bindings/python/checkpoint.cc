// SPDX-License-Identifier: Apache-2.0
// Reads tensors from checkpoints on disk.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/array.h"
#include "bindings/python/docs.h"
#include "bindings/python/file_types.h"
#include "bindings/python/numpy.h"
#include "bindings/python/quantized_tensor.h"
#include "bindings/python/verbs.h"
#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/convention.h"
#include "narrowfloat/io/decode_weight.h"
#include "narrowfloat/io/own_form.h"
#include "narrowfloat/io/read_convention.h"
#include "narrowfloat/io/read_quantized.h"

namespace narrowfloat::python {
namespace {

/// Returns the shape in NumPy. Counts packed elements in bytes: along the last dimension if it
/// fills whole bytes, else as a flat array.
Shape NumPyShape(const io::TensorEntry& entry) {
  if (*NumPyName(entry.dtype) != '\0') return entry.shape;
  const auto bits = static_cast<std::int64_t>(io::Info(entry.dtype).bits);
  if (entry.shape.empty() || entry.shape.back() % 8 * bits % 8 != 0) {
    return {static_cast<std::int64_t>(entry.Bytes())};
  }
  Shape shape = entry.shape;
  std::int64_t& last = shape.back();
  // Divides first, because `last` may be nearly 2^63 in a tensor without values.
  last = last / 8 * bits + last % 8 * bits / 8;
  return shape;
}

nb::object ReadPlain(const io::TensorLocation& location) {
  const io::TensorEntry& entry = location.tensor->entries.front();
  nb::object bytes = NewArray(DType::kUInt8, {static_cast<std::int64_t>(entry.Bytes())});
  const ArrayView held = ViewArray({"load", entry.name, "uint8"}, bytes);
  {
    const nb::gil_scoped_release unlocked;
    io::ReadBuffer(location, 0, BytesOf(held));
  }
  return bytes.attr("view")(NumPyType(entry.dtype)).attr("reshape")(ShapeTuple(NumPyShape(entry)));
}

nb::object ReadQuantized(const io::TensorLocation& location) {
  const io::StoredTensor& stored = *location.tensor;
  const io::QuantizedRecord& record = *stored.quantized;
  QuantizedTensor tensor = NewTensor(record.spec, record.shape, record.dtype, Fill::kNone);
  const TensorMemory held = ViewWritableBuffers("load", tensor);
  {
    const nb::gil_scoped_release unlocked;
    for (std::size_t i = 0; i < stored.plan.size(); ++i) {
      io::ReadBuffer(location, i,
                     {held.view[stored.plan[i].role].data, BufferBytes(stored.plan[i])});
    }
  }
  return nb::cast(std::move(tensor));
}

constexpr const char* kAnyConvention = "auto";

/// An open checkpoint. The deleted copy constructor tells nanobind that the type is movable only.
struct OpenCheckpoint {
  io::Checkpoint files;
  DType dtype = DType::kFloat32;  // of the model's float tensors

  /// Opens a checkpoint; reads the weights of the convention `from`, or of any one with "auto".
  OpenCheckpoint(const std::filesystem::path& path, const std::optional<std::string>& from)
      : files(Open(path)) {
    if (!from) return;
    io::DetectedConvention found;
    {
      const nb::gil_scoped_release unlocked;
      found = io::ReadAny("load", files, *from == kAnyConvention ? "" : *from);
      dtype = io::ModelDType(files);
    }
    if (found.assumed && PyErr_WarnEx(PyExc_UserWarning, ("load: " + found.reason).c_str(), 2) < 0)
      nb::raise_python_error();
  }
  static io::Checkpoint Open(const std::filesystem::path& path) {
    const nb::gil_scoped_release unlocked;
    return io::Checkpoint::Open(path);
  }
  OpenCheckpoint(OpenCheckpoint&&) = default;
  OpenCheckpoint(const OpenCheckpoint&) = delete;
};

std::vector<std::string> NamesOf(const OpenCheckpoint& checkpoint) {
  std::vector<std::string> names;
  for (const io::TensorLocation& location : checkpoint.files.tensors()) {
    names.push_back(location.tensor->name);
  }
  return names;
}

/// Returns the bytes of each entry of a tensor.
std::vector<std::vector<std::byte>> ReadEntries(const io::TensorLocation& location) {
  std::vector<std::vector<std::byte>> bytes;
  for (std::size_t i = 0; i < location.tensor->entries.size(); ++i) {
    io::ReadBuffer(location, i, bytes.emplace_back(location.tensor->entries[i].Bytes()));
  }
  return bytes;
}

/// Returns a weight of another convention as a QuantizedTensor.
nb::object ReadForeign(const io::TensorLocation& location, DType dtype) {
  const io::StoredTensor& weight = *location.tensor;
  const QuantSpec spec = io::NeedOwnSpec("load", weight);
  QuantizedTensor tensor = NewTensor(spec, weight.shape(), dtype, Fill::kNone);
  const TensorMemory held = ViewWritableBuffers("load", tensor);
  {
    const nb::gil_scoped_release unlocked;
    const std::vector<std::vector<std::byte>> bytes = ReadEntries(location);
    const io::StoredTensor stored = io::AsStored({weight.name, spec, weight.shape(), dtype});
    std::vector<std::span<std::byte>> out;
    for (const BufferPlan& buffer : stored.plan) {
      out.emplace_back(held.view[buffer.role].data, BufferBytes(buffer));
    }
    io::StoreOwnBuffers(stored, io::Canonical(weight, {bytes.begin(), bytes.end()}), out);
  }
  return nb::cast(std::move(tensor));
}

nb::object DecodeForeign(const io::TensorLocation& location, DType dtype) {
  const io::StoredTensor& weight = *location.tensor;
  nb::object values = NewArray(dtype, weight.shape());
  const ArrayView out = ViewArray({"load", weight.name, DTypeName(dtype)}, values);
  {
    const nb::gil_scoped_release unlocked;
    const std::vector<std::vector<std::byte>> bytes = ReadEntries(location);
    const std::vector<std::span<const std::byte>> parts(bytes.begin(), bytes.end());
    io::DecodeWeight(*weight.foreign, io::NamedParts(parts), dtype, BytesOf(out), 0);
  }
  return values;
}

nb::object ReadTensor(const OpenCheckpoint& checkpoint, const std::string& name,
                      const nb::object& dtype) {
  const io::TensorLocation location = checkpoint.files.Find(name);
  if (location.tensor == nullptr) throw nb::key_error(name.c_str());
  if (location.tensor->foreign) {
    return dtype.is_none() ? ReadForeign(location, checkpoint.dtype)
                           : DecodeForeign(location, ParseFloatDType("load", dtype));
  }
  return location.tensor->quantized ? ReadQuantized(location) : ReadPlain(location);
}

}  // namespace

void RegisterCheckpoint(nb::module_& module) {
  nb::class_<OpenCheckpoint>(module, "Checkpoint",
                             "A checkpoint on disk, its headers read and checked.")
      .def(nb::init<const std::filesystem::path&, const std::optional<std::string>&>(),
           nb::arg("path"), nb::arg("from_") = nb::none(), kOpenDoc)
      .def("names", &NamesOf, "Returns the names of all tensors, sorted.")
      .def("read", &ReadTensor, nb::arg("name"), nb::arg("dtype") = nb::none(),
           nb::sig("def read(self, name: str, dtype: object = None) -> numpy.ndarray | "
                   "QuantizedTensor"),
           "Reads and returns the tensor of that name; a weight of another convention as values of "
           "`dtype` if that is given. Errors: KeyError, NotImplementedError, OSError.");
  module.def(
      "check_load_dtype", [](nb::handle dtype) { ParseFloatDType("load", dtype); },
      nb::arg("dtype"), nb::sig("def check_load_dtype(dtype: object) -> None"),
      "Checks the type of the values that are read. Errors: TypeError for another than a wide "
      "float type.");
  module.def("find_unfinished_mark", &io::FindUnfinishedMark, nb::arg("path"),
             "Returns the path of the mark that a folder has while a job fills it, or None.");
}

}  // namespace narrowfloat::python
