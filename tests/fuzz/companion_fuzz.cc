// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "narrowfloat/io/companion.h"
#include "narrowfloat/io/detect_convention.h"
#include "narrowfloat/io/read_convention.h"
#include "narrowfloat/io/strict_json.h"
#include "narrowfloat/tensor/error.h"

namespace {

namespace fs = std::filesystem;
using namespace narrowfloat;

void WriteText(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

/// Writes a folder with one small model, an FP8 weight and its scale, under the names of the
/// convention `fp8`. Returns its path.
fs::path MakeModel() {
  fs::path folder = fs::temp_directory_path() / ("fuzz_companion." + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::string header =
      R"({"a.weight":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]},)"
      R"("a.weight_scale_inv":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string text(8, '\0');
  text[0] = static_cast<char>(header.size());
  WriteText(folder / "model.safetensors", text + header + std::string(8, '\0'));
  std::atexit([] {
    std::error_code ignored;
    fs::remove_all(fs::temp_directory_path() / ("fuzz_companion." + std::to_string(::getpid())),
                   ignored);
  });
  return folder;
}

/// Parses config.json and hf_quant_config.json as the tools do before they read a weight. Aborts if
/// a weight loses its shape.
void ReadModel(const fs::path& folder) {
  try {
    io::Checkpoint model = io::Checkpoint::Open(folder);
    const io::DetectedConvention guess = io::DetectConvention(model);
    io::ModelDType(model);
    if (const io::ConventionRow* row = io::FindConvention(guess.name)) {
      io::ReadConvention(model, *row, guess.reason);
      for (const io::TensorLocation& location : model.tensors()) {
        if (location.tensor->shape().empty()) std::abort();
      }
    }
  } catch (const Error&) {
  }
}

void Expect(const std::string& text, const nlohmann::json& tree) {
  // Compares printed trees, because NaN is not equal to itself.
  if (io::ParsePythonJson("edited", text, io::kCompanionDepth).dump() != tree.dump()) std::abort();
}

/// Removes the member `name` of the text's member `object`, and checks the result.
void EditMember(std::string_view text, nlohmann::json tree, const std::string& object,
                const std::string& name) {
  if (tree.contains(object) && tree[object].is_object()) tree[object].erase(name);
  Expect(io::WithoutMember(text, object, name), tree);
}

/// Sets and removes the member that a convention writes, and the text's first member.
void EditConfig(std::string_view text) {
  nlohmann::json tree;
  try {
    tree = io::ParsePythonJson("config", text, io::kCompanionDepth);
  } catch (const Error&) {
    return;
  }
  if (!tree.is_object()) return;
  const std::string first = tree.empty() ? "" : tree.begin().key();
  for (const std::string& name : {std::string(io::kQuantizationKey), first}) {
    nlohmann::json set = tree, removed = tree;
    set[name] = {{"bits", {8, 4}}};
    removed.erase(name);
    Expect(io::WithMember(text, name, {{"bits", {8, 4}}}), set);
    Expect(io::WithoutMember(text, name), removed);
    EditMember(text, tree, first, name);
    EditMember(text, tree, io::kTextModelKey, name);
  }
}

}  // namespace

/// Writes the text after the first byte to files: to config.json if bit 0 of that byte is set, to
/// hf_quant_config.json if bit 1 is. Checks that any text is read or refused, that no weight loses
/// its shape, and that setting or removing a member changes no other member.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fs::path folder = MakeModel();
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  std::error_code ignored;
  const char* const names[] = {io::kConfigFile, io::kModelOptFile};
  for (int i = 0; i < 2; ++i) {
    if ((data[0] >> i & 1) != 0) {
      WriteText(folder / names[i], text);
    } else {
      fs::remove(folder / names[i], ignored);
    }
  }
  ReadModel(folder);
  EditConfig(text);
  return 0;
}
