// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <deque>
#include <filesystem>
#include <list>
#include <optional>
#include <set>
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
#include "narrowfloat/io/convention_writer.h"
#include "narrowfloat/io/decode_weight.h"
#include "narrowfloat/io/file.h"
#include "narrowfloat/io/own_form.h"
#include "narrowfloat/io/quantization_config.h"
#include "narrowfloat/io/read_convention.h"
#include "narrowfloat/io/read_quantized.h"
#include "narrowfloat/io/safetensors_file.h"
#include "narrowfloat/io/write_convention.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::python {
namespace {

/// NumPy's or ml_dtypes' name of each file type, in the order of io::FileDType. An empty name means
/// that NumPy has no such type; the tensor is then an array of bytes.
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

/// Returns the shape in NumPy. Counts packed elements in bytes: along the last dimension if it
/// fills whole bytes, else as a flat array.
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

io::FileDType FileTypeOf(const std::string& name, nb::handle array) {
  const nb::object dtype = array.attr("dtype");
  for (std::size_t i = 0; i < kNumPyNames.size(); ++i) {
    if (*kNumPyNames[i] == '\0') continue;
    const auto type = static_cast<io::FileDType>(i);
    if (NumPyType(type).equal(dtype)) return type;
  }
  throw nb::type_error(
      fmt::format("save: {} must have a dtype of whole bytes that safetensors names, got {}", name,
                  nb::str(dtype).c_str())
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
  std::deque<std::vector<std::byte>> scales;
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

/// A weight in another convention: its entries, its codes, and the bytes of the other entries.
struct WrittenWeight {
  std::vector<io::TensorEntry> entries;
  std::span<const std::byte> codes;
  std::vector<std::vector<std::byte>> scales;
};

/// Converts a weight. Requires: `held` views `tensor` and outlives the result.
WrittenWeight WriteWeight(const io::ConventionWriter& writer, const std::string& name,
                          const QuantizedTensor& tensor, const TensorMemory& held) {
  const io::StoredTensor stored = io::AsStored({name, tensor.spec, tensor.shape, tensor.dtype});
  std::vector<std::span<const std::byte>> input;
  for (const BufferPlan& buffer : stored.plan) {
    // Buffers that only quantization needs (scale, amax of per-tensor FP8) may be absent.
    const std::byte* data = held.view[buffer.role].data;
    input.emplace_back(data, data == nullptr ? 0 : BufferBytes(buffer));
  }
  const io::CanonicalWeight weight = io::Canonical(stored, input);
  return {writer.Entries(name, weight.form), weight.codes,
          io::WrittenScales(weight, writer.convention(), writer.FormatOf(name, weight.form))};
}

void AddWeight(Outgoing& outgoing, const io::ConventionWriter& writer, const std::string& name,
               const QuantizedTensor& tensor) {
  outgoing.tensors.push_back(ViewBuffers("save", tensor));
  WrittenWeight weight = WriteWeight(writer, name, tensor, outgoing.tensors.back());
  for (std::size_t i = 0; i < weight.entries.size(); ++i) {
    io::TensorEntry& entry = weight.entries[i];
    std::span<const std::byte> bytes = weight.codes;
    if (i > 0) bytes = outgoing.scales.emplace_back(std::move(weight.scales[i - 1]));
    outgoing.pieces.push_back({entry.name, bytes});
    outgoing.contents.AddPlain(entry.name, entry.dtype, std::move(entry.shape));
  }
}

void CheckIsArray(const std::string& name, nb::handle array) {
  if (IsArray(array)) return;
  throw nb::type_error(fmt::format("save: {} must be a NumPy array or a QuantizedTensor, got {}",
                                   name, nb::type_name(array.type()).c_str())
                           .c_str());
}

std::string ParseName(const nb::object& key) {
  if (nb::isinstance<nb::str>(key)) return nb::cast<std::string>(key);
  throw nb::type_error(
      fmt::format("save: names must be str, got {}", nb::repr(key).c_str()).c_str());
}

void AddArray(Outgoing& outgoing, const std::string& name, nb::handle array) {
  CheckIsArray(name, array);
  const io::FileDType type = FileTypeOf(name, array);
  outgoing.contents.AddPlain(name, type, ParseShape("save", array.attr("shape")));
  outgoing.arrays.push_back(Np().ascontiguousarray(array));
  AcquiredBuffer buffer;
  if (!buffer.Acquire(outgoing.arrays.back(), PyBUF_STRIDES)) nb::raise_python_error();
  outgoing.pieces.push_back(
      {name, {static_cast<const std::byte*>(buffer->buf), static_cast<std::size_t>(buffer->len)}});
  outgoing.buffers.push_back(std::move(buffer));
}

void CheckMapping(const char* operation, const nb::object& tensors) {
  if (nb::hasattr(tensors, "items")) return;
  throw nb::type_error(fmt::format("{}: tensors must be a mapping of names to arrays, got {}",
                                   operation, nb::type_name(tensors.type()).c_str())
                           .c_str());
}

/// Returns the specs of all quantized tensors.
std::set<std::string> SpecsOf(const nb::object& tensors) {
  std::set<std::string> specs;
  for (const nb::handle item : tensors.attr("items")()) {
    const nb::object key = item[0], value = item[1];
    if (!nb::isinstance<QuantizedTensor>(value)) continue;
    specs.insert(PrintQuantSpec(ParseTensor("save", ParseName(key).c_str(), value).spec));
  }
  return specs;
}

/// Returns a writer with all weights added, so that all get one format.
io::ConventionWriter MakeWriter(const std::string& convention, const nb::object& tensors) {
  io::CheckIsWritten("save", convention);
  io::ConventionWriter writer("save", convention);
  for (const nb::handle item : tensors.attr("items")()) {
    const nb::object key = item[0], value = item[1];
    if (!nb::isinstance<nb::str>(key) || !nb::isinstance<QuantizedTensor>(value)) continue;
    const auto name = nb::cast<std::string>(key);
    const QuantizedTensor& tensor = ParseTensor("save", name.c_str(), value);
    writer.Add(name, io::FormOf(io::AsStored({name, tensor.spec, tensor.shape, tensor.dtype})));
  }
  return writer;
}

/// Returns the names, ranks and kinds of the tensors in a mapping.
std::vector<std::pair<std::string, io::ModelTensor>> ModelTensors(const nb::object& tensors) {
  std::vector<std::pair<std::string, io::ModelTensor>> model;
  for (const nb::handle item : tensors.attr("items")()) {
    const nb::object value = item[1];
    const std::string name = ParseName(item[0]);
    const bool quantized = nb::isinstance<QuantizedTensor>(value);
    if (!quantized) CheckIsArray(name, value);
    const nb::object shape = value.attr("shape");
    model.push_back({name, {"", nb::len(shape), quantized}});
  }
  for (auto& [name, tensor] : model) tensor.name = name;
  return model;
}

/// Returns config.json's text with a quantization_config, and ModelOpt's file or an empty text.
std::pair<std::string, std::string> ConfigFiles(const nb::object& tensors,
                                                const std::string& convention,
                                                const std::string& config) {
  CheckMapping("save", tensors);
  const auto named = ModelTensors(tensors);
  std::vector<io::ModelTensor> model;
  for (const auto& [name, tensor] : named) model.push_back(tensor);
  if (std::ranges::none_of(model, &io::ModelTensor::quantized)) {
    throw InvalidArgument("save: a quantization_config needs a QuantizedTensor, got none");
  }
  io::QuantizationConfig written;
  if (convention == io::kConventionName) {
    written = io::OwnConfig(SpecsOf(tensors));
  } else {
    // Drops the old quantization_config: it describes the folder's previous tensors.
    written = io::ConfigOf(MakeWriter(convention, tensors), model, io::WithoutQuantization(config));
  }
  return {io::WithQuantization(config, written), written.owner};
}

void Save(const std::filesystem::path& path, const nb::object& tensors,
          const std::string& convention,
          const std::vector<std::pair<std::filesystem::path, std::string>>& beside) {
  CheckMapping("save", tensors);
  Outgoing outgoing;
  std::optional<io::ConventionWriter> foreign;
  if (convention != io::kConventionName) {
    foreign = MakeWriter(convention, tensors);
    for (const std::string& note : foreign->Notes()) {
      if (PyErr_WarnEx(PyExc_UserWarning, ("save: " + note).c_str(), 2) < 0) {
        nb::raise_python_error();
      }
    }
  }
  for (const nb::handle item : tensors.attr("items")()) {
    const nb::object key = item[0], value = item[1];
    const std::string name = ParseName(key);
    if (nb::isinstance<QuantizedTensor>(value) && foreign) {
      AddWeight(outgoing, *foreign, name, ParseTensor("save", name.c_str(), value));
    } else if (nb::isinstance<QuantizedTensor>(value)) {
      AddTensor(outgoing, name, ParseTensor("save", name.c_str(), value));
    } else {
      AddArray(outgoing, name, value);
      if (foreign) foreign->CheckCopy(outgoing.contents.tensors.back());
    }
  }
  outgoing.contents.metadata["format"] = "pt";  // some readers reject a file without it
  const nb::gil_scoped_release unlocked;
  std::list<io::AtomicFile> files;
  for (const auto& [file, text] : beside)
    files.emplace_back(file).Write(0, std::as_bytes(std::span(text)));
  for (io::AtomicFile& file : files) file.FlushToDisk();
  io::SafetensorsWriter writer(path, std::move(outgoing.contents.tensors),
                               std::move(outgoing.contents.metadata));
  for (const Outgoing::Piece& piece : outgoing.pieces) writer.Append(piece.entry, piece.bytes);
  writer.Finish();
  for (io::AtomicFile& file : files) file.Commit();
}

/// Returns the entries of a weight in another convention: name, NumPy's dtype, shape, bytes.
nb::list WriteInConvention(const std::string& name, const QuantizedTensor& tensor,
                           const std::string& convention) {
  const io::ConventionWriter writer("export", convention);
  const TensorMemory held = ViewBuffers("export", tensor);
  const WrittenWeight weight = [&] {
    const nb::gil_scoped_release unlocked;
    return WriteWeight(writer, name, tensor, held);
  }();
  nb::list list;
  const std::vector<io::TensorEntry>& entries = weight.entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::span<const std::byte> bytes =
        i == 0 ? weight.codes : std::span<const std::byte>(weight.scales[i - 1]);
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
  module.def(
      "check_convention",
      [](const std::string& convention) { io::ConventionWriter("export", convention); },
      nb::arg("convention"),
      "Checks a convention to write. Errors: ValueError if it is unknown, NotImplementedError if "
      "it "
      "is only read.");
  module.def("write_in_convention", &WriteInConvention, nb::arg("name"), nb::arg("tensor"),
             nb::arg("convention"),
             nb::sig("def write_in_convention(name: str, tensor: QuantizedTensor, convention: str) "
                     "-> list[tuple[str, str, tuple[int, ...], numpy.ndarray]]"),
             "Returns the tensors that a weight is in a convention: name, dtype, shape and bytes.");
  module.def("config_files", &ConfigFiles, nb::arg("tensors"), nb::arg("convention"),
             nb::arg("config"), nb::sig(kConfigFilesSignature), kConfigFilesDoc);
  module.def("save", &Save, nb::arg("path"), nb::arg("tensors"), nb::kw_only(),
             nb::arg("convention") = std::string(io::kConventionName),
             nb::arg("beside") = std::vector<std::pair<std::filesystem::path, std::string>>{},
             nb::sig(kSaveSignature), kSaveDoc);
}

}  // namespace narrowfloat::python
