// SPDX-License-Identifier: Apache-2.0
#include "tools/companions.h"

#include <vector>

#include "narrowfloat/io/companion.h"
#include "tools/job.h"

namespace narrowfloat::tools {
namespace {

/// Returns the text of config.json, or an empty text if there is no such file or it holds no
/// object.
std::string ConfigText(const io::Checkpoint& in) {
  const bool is_object = io::ReadCompanion(in, io::kConfigFile).is_object();
  return is_object ? io::ReadCompanionText(in, io::kConfigFile) : "";
}

}  // namespace

Companions PlainCompanions(const io::Checkpoint& in) {
  Companions companions;
  if (!in.folder()) return companions;
  companions[io::kModelOptFile] = std::nullopt;
  const bool quantized =
      !io::ValueAt(io::ReadCompanion(in, io::kConfigFile), {io::kQuantizationKey}).is_null();
  if (quantized) companions[io::kConfigFile] = io::WithoutQuantization(ConfigText(in));
  return companions;
}

Companions QuantizedCompanions(const io::Checkpoint& in,
                               const io::QuantizationConfig& quantization) {
  Companions companions;
  if (!in.folder()) return companions;
  companions[io::kModelOptFile] = std::nullopt;
  if (!quantization.owner.empty()) companions[io::kModelOptFile] = quantization.owner;
  const std::string config = ConfigText(in);
  if (!config.empty()) companions[io::kConfigFile] = io::WithQuantization(config, quantization);
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
