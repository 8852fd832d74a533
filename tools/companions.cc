// SPDX-License-Identifier: Apache-2.0
#include "tools/companions.h"

#include <vector>

#include "narrowfloat/io/companion.h"
#include "narrowfloat/io/strict_json.h"
#include "tools/job.h"

namespace narrowfloat::tools {
namespace {

constexpr const char* kMistralFile = "params.json";
constexpr const char* kMistralKey = "quantization";

/// Returns the text of config.json; an empty object if there is no such file.
std::string ConfigText(const io::Checkpoint& in) {
  const bool exists = !io::ReadCompanion(in, io::kConfigFile).is_null();
  return exists ? io::ReadCompanionText(in, io::kConfigFile) : "{}\n";
}

/// Returns the owners' files without their descriptions of the input's tensors: without ModelOpt's
/// file, and with Mistral's file without one member.
Companions CompanionsWithoutDescriptions(const io::Checkpoint& in) {
  Companions companions;
  if (!in.folder()) return companions;
  companions[io::kModelOptFile] = std::nullopt;
  if (!io::ValueAt(io::ReadCompanion(in, kMistralFile), {kMistralKey}).is_null()) {
    companions[kMistralFile] =
        io::WithoutMember(io::ReadCompanionText(in, kMistralFile), kMistralKey);
  }
  return companions;
}

}  // namespace

bool DescribesQuantization(const std::filesystem::path& folder, const std::string& name) {
  if (name == io::kModelOptFile) return true;
  if (name == io::kConfigFile) {
    return !io::QuantizationOf(io::ReadCompanion(folder, io::kConfigFile)).is_null();
  }
  if (name != kMistralFile) return false;
  return !io::ValueAt(io::ReadCompanion(folder, kMistralFile), {kMistralKey}).is_null();
}

Companions PlainCompanions(const io::Checkpoint& in) {
  Companions companions = CompanionsWithoutDescriptions(in);
  if (!in.folder()) return companions;
  const nlohmann::json config = io::ReadCompanion(in, io::kConfigFile);
  if (io::QuantizationOf(config).is_null()) return companions;
  const bool has_more = config.size() > 1 || !config.contains(io::kQuantizationKey);
  auto& text = companions[io::kConfigFile];
  if (has_more) text = io::WithoutQuantization(ConfigText(in));
  return companions;
}

Companions QuantizedCompanions(const io::Checkpoint& in,
                               const io::QuantizationConfig& quantization) {
  Companions companions = CompanionsWithoutDescriptions(in);
  if (!in.folder()) return companions;
  if (!quantization.owner.empty()) companions[io::kModelOptFile] = quantization.owner;
  companions[io::kConfigFile] = io::WithQuantization(ConfigText(in), quantization);
  return companions;
}

Companions OwnerCompanions(const io::Checkpoint& in, const io::ConventionWriter& writer,
                           const TensorRewriter& rewriter) {
  std::vector<io::ModelTensor> tensors;
  for (const io::TensorLocation& location : in.tensors()) {
    const io::StoredTensor& tensor = *location.tensor;
    tensors.push_back(
        {tensor.name, tensor.shape().size(), !tensor.IsPlain() || rewriter.Rewrites(tensor)});
  }
  return QuantizedCompanions(in, io::ConfigOf(writer, tensors, ConfigText(in)));
}

}  // namespace narrowfloat::tools
