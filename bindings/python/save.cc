// SPDX-License-Identifier: Apache-2.0
// Writes NumPy's arrays and quantized tensors to files, in this library's and other conventions.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
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
#include "bindings/python/file_types.h"
#include "bindings/python/numpy.h"
#include "bindings/python/quantized_tensor.h"
#include "bindings/python/verbs.h"
#include "narrowfloat/io/convention.h"
#include "narrowfloat/io/convention_writer.h"
#include "narrowfloat/io/file.h"
#include "narrowfloat/io/own_form.h"
#include "narrowfloat/io/quantization_config.h"
#include "narrowfloat/io/safetensors_file.h"
#include "narrowfloat/io/write_convention.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::python {
namespace {

io::FileDType FileTypeOf(const std::string& name, nb::handle array) {
  const nb::object dtype = array.attr("dtype");
  for (std::size_t i = 0; i < io::kFileDTypes.size(); ++i) {
    const auto type = static_cast<io::FileDType>(i);
    if (*NumPyName(type) != '\0' && NumPyType(type).equal(dtype)) return type;
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
  io::CheckIsConvention("save", convention, io::WrittenConventions());
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
    list.append(nb::make_tuple(entries[i].name, NumPyName(entries[i].dtype),
                               ShapeTuple(entries[i].shape), array));
  }
  return list;
}

}  // namespace

void RegisterSaving(nb::module_& module) {
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
