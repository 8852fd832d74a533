// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/array.h"
#include "bindings/python/docs.h"
#include "bindings/python/numpy.h"
#include "bindings/python/quantized_tensor.h"
#include "bindings/python/verbs.h"
#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/convention.h"
#include "narrowfloat/io/safetensors_file.h"
#include "narrowfloat/io/write_convention.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::python {
namespace {

/// NumPy's or ml_dtypes' name of each type of a file, in the order of io::FileDType; empty: NumPy
/// has no such type, and the tensor's bytes are used.
constexpr auto kNumPyNames = std::to_array<const char*>({
    "bool",
    "",
    "",
    "",
    "uint8",
    "int8",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e8m0fnu",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "int16",
    "uint16",
    "float16",
    "bfloat16",
    "int32",
    "uint32",
    "float32",
    "complex64",
    "float64",
    "int64",
    "uint64",
});
static_assert(kNumPyNames.size() == io::kFileDTypes.size());

nb::object NumPyType(io::FileDType dtype) {
  const char* name = kNumPyNames[static_cast<std::size_t>(dtype)];
  return *name == '\0' ? DTypeObject(DType::kUInt8) : Np().dtype(name);
}

/// Returns the shape in NumPy: packed elements are counted in bytes, along the last dimension if
/// that is a whole number of bytes.
Shape NumPyShape(const io::TensorEntry& entry) {
  if (*kNumPyNames[static_cast<std::size_t>(entry.dtype)] != '\0') return entry.shape;
  const auto bits = static_cast<std::int64_t>(io::Info(entry.dtype).bits);
  if (entry.shape.empty() || entry.shape.back() * bits % 8 != 0) {
    return {static_cast<std::int64_t>(entry.Bytes())};
  }
  Shape shape = entry.shape;
  shape.back() = shape.back() * bits / 8;
  return shape;
}

std::span<std::byte> BytesOf(const ArrayView& array) {
  return {array.view.data, FlattenShape(array.view.shape).Size() * ItemSize(array.view.dtype)};
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

/// Movable only: nanobind must be told so.
struct OpenCheckpoint {
  io::Checkpoint files;

  explicit OpenCheckpoint(const std::filesystem::path& path) : files(io::Checkpoint::Open(path)) {}
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

nb::object ReadTensor(const OpenCheckpoint& checkpoint, const std::string& name) {
  const io::TensorLocation location = checkpoint.files.Find(name);
  if (location.tensor == nullptr) throw nb::key_error(name.c_str());
  return location.tensor->quantized ? ReadQuantized(location) : ReadPlain(location);
}

io::FileDType FileTypeOf(const std::string& name, nb::handle array) {
  const nb::object dtype = array.attr("dtype");
  for (std::size_t i = 0; i < kNumPyNames.size(); ++i) {
    if (*kNumPyNames[i] == '\0') continue;
    const auto type = static_cast<io::FileDType>(i);
    if (NumPyType(type).equal(dtype)) return type;
  }
  throw nb::type_error(fmt::format("save: {} must have a dtype that safetensors names, got {}",
                                   name, nb::str(dtype).c_str())
                           .c_str());
}

/// The input of Save: the header's contents, and the bytes of each entry.
struct Outgoing {
  struct Piece {
    std::string entry;
    std::span<const std::byte> bytes;
  };
  io::FileContents contents;
  std::vector<Piece> pieces;
  std::vector<TensorMemory> tensors;  // keep the bytes alive
  std::vector<nb::object> arrays;
  std::vector<AcquiredBuffer> buffers;
};

void AddTensor(Outgoing& outgoing, const std::string& name, const QuantizedTensor& tensor) {
  TensorMemory held = ViewBuffers("save", tensor);
  CheckBuffers("save", held.view);
  outgoing.contents.AddQuantized({name, tensor.spec, tensor.shape, tensor.dtype});
  for (const BufferPlan& buffer : io::StoredBuffers(tensor.spec, tensor.shape)) {
    outgoing.pieces.push_back(
        {io::BufferName(name, buffer.role), {held.view[buffer.role].data, BufferBytes(buffer)}});
  }
  outgoing.tensors.push_back(std::move(held));
}

void AddArray(Outgoing& outgoing, const std::string& name, nb::handle array) {
  if (!IsArray(array)) {
    throw nb::type_error(fmt::format("save: {} must be a NumPy array or a QuantizedTensor, got {}",
                                     name, nb::type_name(array.type()).c_str())
                             .c_str());
  }
  const io::FileDType type = FileTypeOf(name, array);
  outgoing.contents.AddPlain(name, type, ParseShape("save", array.attr("shape")));
  outgoing.arrays.push_back(Np().ascontiguousarray(array));
  AcquiredBuffer buffer;
  if (!buffer.Acquire(outgoing.arrays.back(), PyBUF_STRIDES)) nb::raise_python_error();
  outgoing.pieces.push_back(
      {name, {static_cast<const std::byte*>(buffer->buf), static_cast<std::size_t>(buffer->len)}});
  outgoing.buffers.push_back(std::move(buffer));
}

void Save(const std::filesystem::path& path, const nb::object& tensors) {
  if (!nb::hasattr(tensors, "items")) {
    throw nb::type_error(fmt::format("save: tensors must be a mapping of names to arrays, got {}",
                                     nb::type_name(tensors.type()).c_str())
                             .c_str());
  }
  Outgoing outgoing;
  for (const nb::handle item : tensors.attr("items")()) {
    const nb::object key = item[0], value = item[1];
    if (!nb::isinstance<nb::str>(key)) {
      throw nb::type_error(
          fmt::format("save: names must be str, got {}", nb::repr(key).c_str()).c_str());
    }
    const auto name = nb::cast<std::string>(key);
    if (nb::isinstance<QuantizedTensor>(value)) {
      AddTensor(outgoing, name, *nb::inst_ptr<QuantizedTensor>(value));
    } else {
      AddArray(outgoing, name, value);
    }
  }
  outgoing.contents.metadata["format"] = "pt";  // some readers refuse a file without it
  const nb::gil_scoped_release unlocked;
  io::SafetensorsWriter writer(path, std::move(outgoing.contents.tensors),
                               std::move(outgoing.contents.metadata));
  for (const Outgoing::Piece& piece : outgoing.pieces) writer.Append(piece.entry, piece.bytes);
  writer.Finish();
}

/// Returns the entries of a weight in another convention: name, NumPy's dtype, shape, bytes.
nb::list WriteInConvention(const std::string& name, const QuantizedTensor& tensor,
                           const std::string& convention_name) {
  const io::ConventionRow* convention = io::FindConvention(convention_name);
  if (convention == nullptr || convention->written.empty()) {
    throw InvalidArgument(
        fmt::format("export: '{}' must be a convention that can be written", convention_name));
  }
  const TensorMemory held = ViewBuffers("export", tensor);
  io::StoredTensor stored{.name = name};
  stored.quantized = io::QuantizedRecord{name, tensor.spec, tensor.shape, tensor.dtype};
  stored.plan = io::StoredBuffers(tensor.spec, tensor.shape);
  io::FileContents contents;
  contents.AddQuantized(*stored.quantized);
  stored.entries = std::move(contents.tensors);
  std::vector<std::span<const std::byte>> input;
  for (const BufferPlan& buffer : stored.plan) {
    // Buffers that only quantizing needs (scale, amax of per-tensor FP8) may be absent.
    const std::byte* data = held.view[buffer.role].data;
    input.emplace_back(data, data == nullptr ? 0 : BufferBytes(buffer));
  }
  const io::CanonicalWeight weight = io::Canonical(stored, input);
  const io::WrittenFormat* format = io::FindWritten(*convention, weight.form);
  if (format == nullptr) {
    throw Unsupported(fmt::format("export: '{}' ({}) has no form in '{}' with the same codes", name,
                                  io::FormatText(weight.form), convention->name));
  }
  const auto entries = io::PlanWritten(*convention, *format, name, weight.form);
  const auto scales = io::WrittenScales(weight, *convention, *format);
  nb::list list;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::span<const std::byte> bytes = i == 0 ? weight.codes : std::span(scales[i - 1]);
    nb::object array = NewArray(DType::kUInt8, {static_cast<std::int64_t>(bytes.size())});
    const ArrayView out = ViewArray({"export", entries[i].name, "uint8"}, array);
    std::ranges::copy(bytes, BytesOf(out).begin());
    list.append(nb::make_tuple(entries[i].name,
                               kNumPyNames[static_cast<std::size_t>(entries[i].dtype)],
                               ShapeTuple(entries[i].shape), array));
  }
  return list;
}

}  // namespace

void RegisterCheckpoint(nb::module_& module) {
  nb::class_<OpenCheckpoint>(module, "Checkpoint",
                             "A checkpoint on disk, its headers read and checked.")
      .def(nb::init<const std::filesystem::path&>(), nb::arg("path"), kOpenDoc)
      .def("names", &NamesOf, "Names of all tensors, sorted.")
      .def("read", &ReadTensor, nb::arg("name"),
           nb::sig("def read(self, name: str) -> numpy.ndarray | QuantizedTensor"),
           "The tensor of that name, read now. Errors: KeyError, OSError.");
  module.def("write_in_convention", &WriteInConvention, nb::arg("name"), nb::arg("tensor"),
             nb::arg("convention"),
             nb::sig("def write_in_convention(name: str, tensor: QuantizedTensor, convention: str) "
                     "-> list[tuple[str, str, tuple[int, ...], numpy.ndarray]]"),
             "Returns the tensors that a weight is in a convention: name, dtype, shape and bytes.");
  module.def("save", &Save, nb::arg("path"), nb::arg("tensors"), nb::sig(kSaveSignature), kSaveDoc);
}

}  // namespace narrowfloat::python
