// SPDX-License-Identifier: Apache-2.0
#include "tools/foreign_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "narrowfloat/tensor/error.h"
#include "tools/command.h"

namespace narrowfloat::tools {
namespace {

/// The modules whose matrix stays as it is, by the names that owners use.
Json IgnoredModules(const io::Checkpoint& in, const TensorRewriter& rewriter) {
  constexpr std::string_view kWeight = ".weight";
  Json modules = Json::array();
  for (const io::TensorLocation& location : in.tensors()) {
    const io::StoredTensor& tensor = *location.tensor;
    const bool matrix = tensor.IsPlain() && tensor.shape().size() >= 2;
    if (!matrix || rewriter.Takes(tensor) || !tensor.name.ends_with(kWeight)) continue;
    modules.push_back(tensor.name.substr(0, tensor.name.size() - kWeight.size()));
  }
  return modules;
}

}  // namespace

ForeignWriter::ForeignWriter(std::string verb, const std::string& convention)
    : verb_(std::move(verb)), convention_(io::FindConvention(convention)) {
  if (convention_ == nullptr) {
    throw InvalidArgument(fmt::format("{}: unknown convention '{}'", verb_, convention));
  }
  if (convention_->written.empty()) {
    throw Unsupported(fmt::format("{}: '{}' is read, not written", verb_, convention));
  }
}

const io::WrittenFormat& ForeignWriter::FormatOf(const std::string& name,
                                                 const io::ForeignWeight& form) const {
  const io::WrittenFormat* format = io::FindWritten(*convention_, form);
  if (format != nullptr) return *format;
  throw Unsupported(fmt::format("{}: '{}' ({}) has no form in '{}' with the same codes", verb_,
                                name, io::FormatText(form), convention_->name));
}

void ForeignWriter::Add(const std::string& name, const io::ForeignWeight& form) {
  const io::WrittenFormat& format = FormatOf(name, form);
  if (std::ranges::find(formats_, &format) != formats_.end()) return;
  if (!formats_.empty() && !convention_->mixes) {
    throw Unsupported(
        fmt::format("{}: '{}' would be {} and others {}, a model must have one format", verb_, name,
                    format.name, formats_.front()->name));
  }
  formats_.push_back(&format);
}

std::string ForeignWriter::FormatName() const {
  std::string names;
  for (const io::WrittenFormat* format : formats_) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", format->name);
  }
  return names;
}

void ForeignWriter::Plan(const std::string& name, const io::ForeignWeight& form,
                         io::FileContents& contents) const {
  for (io::TensorEntry& entry : io::PlanWritten(*convention_, FormatOf(name, form), name, form)) {
    contents.AddPlain(std::move(entry.name), entry.dtype, std::move(entry.shape));
  }
}

void ForeignWriter::Write(const std::string& name, const io::CanonicalWeight& weight,
                          io::SafetensorsWriter& writer) const {
  const io::WrittenFormat& format = FormatOf(name, weight.form);
  const auto entries = io::PlanWritten(*convention_, format, name, weight.form);
  const auto scales = io::WrittenScales(weight, *convention_, format);
  writer.Append(entries[0].name, weight.codes);
  for (std::size_t i = 0; i < scales.size(); ++i) writer.Append(entries[i + 1].name, scales[i]);
}

Companions ForeignWriter::Configuration(const io::Checkpoint& in,
                                        const TensorRewriter& rewriter) const {
  const Json ignored = IgnoredModules(in, rewriter);
  Json config = Json::object();
  for (const io::WrittenFormat* format : formats_) {
    config.update(Json::parse(format->quantization_config));
  }
  config[std::string(convention_->ignored)] = ignored;
  std::string owner;
  const std::string_view owner_config = formats_.front()->owner_config;
  if (!owner_config.empty()) {
    Json object = Json::parse(owner_config);
    object["quantization"]["exclude_modules"] = ignored;
    owner = object.dump();
  }
  return QuantizedCompanions(in, config.dump(), owner);
}

}  // namespace narrowfloat::tools
