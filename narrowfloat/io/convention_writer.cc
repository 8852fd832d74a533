// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/convention_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "narrowfloat/io/read_convention.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/shape.h"

namespace narrowfloat::io {

namespace {

/// Returns the blocks of a reader that distributes scales evenly over rows and columns. Returns the
/// weight's own blocks if the scales do not divide the matrix: the reader refuses the weight.
BlockShape SpreadBlock(const ForeignWeight& form) {
  const std::size_t rows = form.ScaleRows(), cols = form.ScaleCols();
  if (form.rows % rows != 0 || form.cols % cols != 0) return form.block;
  return {rows == 1 ? form.block.rows : form.rows / rows,
          cols == 1 ? form.block.cols : form.cols / cols};
}

}  // namespace

ConventionWriter::ConventionWriter(std::string operation, const std::string& convention)
    : operation_(std::move(operation)), convention_(FindConvention(convention)) {
  if (convention_ == nullptr) {
    RefuseConvention(operation_, convention, OtherConventions());
  }
  if (convention_->written.empty()) {
    throw Unsupported(fmt::format("{}: '{}' can be read but not written", operation_, convention));
  }
}

const WrittenFormat& ConventionWriter::FormatOf(const std::string& name,
                                                const ForeignWeight& form) const {
  const bool stacks = form.shape.size() == 2 || form.shape.size() == 3;
  if (!stacks || FlattenShape(form.shape).Size() == 0) {
    throw Unsupported(
        fmt::format("{}: '{}' must be a matrix or a stack of matrices that is not empty to be "
                    "written in '{}', got shape {}",
                    operation_, name, convention_->name, ShapeText(form.shape)));
  }
  const std::vector<const WrittenFormat*> fitting = FindWritten(*convention_, form);
  if (fitting.empty()) {
    throw Unsupported(fmt::format("{}: '{}' ({}) has no form in '{}' with the same codes",
                                  operation_, name, FormatText(form), convention_->name));
  }
  CheckRowBlocks(name, form);
  const auto common = std::ranges::find_first_of(fitting, common_);
  return common == fitting.end() ? *fitting.front() : **common;
}

void ConventionWriter::CheckRowBlocks(const std::string& name, const ForeignWeight& form) const {
  if (form.block.rows != 1 || form.cols % form.block.cols == 0) return;
  throw Unsupported(
      fmt::format("{}: '{}' must have rows of whole blocks of {} values to be written in '{}', got "
                  "rows of {}",
                  operation_, name, form.block.cols, convention_->name, form.cols));
}

void ConventionWriter::Add(const std::string& name, const ForeignWeight& form) {
  const WrittenFormat& format = FormatOf(name, form);
  if (form.input_scale.empty()) unscaled_.Add(fmt::format("'{}'", name));
  if (const BlockShape block = convention_->spreads_scales ? SpreadBlock(form) : form.block;
      block != form.block) {
    spread_.Add(fmt::format("'{}' ({}x{}; blocks must be {}x{}, it uses {}x{})", name, form.rows,
                            form.cols, form.block.rows, form.block.cols, block.rows, block.cols));
  }
  if (convention_->mixes) {
    if (std::ranges::find(formats_, &format) == formats_.end()) formats_.push_back(&format);
    return;
  }
  const std::vector<const WrittenFormat*> fitting = FindWritten(*convention_, form);
  if (formats_.empty()) common_ = fitting;
  std::erase_if(common_, [&](const WrittenFormat* known) {
    return std::ranges::find(fitting, known) == fitting.end();
  });
  if (common_.empty()) {
    throw Unsupported(
        fmt::format("{}: '{}' would be {} and others {}, a model must have one format", operation_,
                    name, format.name, formats_.front()->name));
  }
  formats_ = {common_.front()};
}

void ConventionWriter::CheckCopy(const TensorEntry& entry) const {
  io::CheckCopy(operation_, *convention_, entry);
}

std::string ConventionWriter::FormatName() const {
  std::string names;
  for (const WrittenFormat* format : formats_) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", format->name);
  }
  return names;
}

void ConventionWriter::Noted::Add(const std::string& weight) {
  if (count++ == 0) first = weight;
}

std::string ConventionWriter::Noted::More() const {
  return count == 1 ? "" : fmt::format(" and {} more", count - 1);
}

std::vector<std::string> ConventionWriter::Notes() const {
  std::vector<std::string> notes;
  const auto needs = std::ranges::find_if(
      formats_, [](const auto* format) { return !format->input_scale.empty(); });
  if (unscaled_.count > 0 && needs != formats_.end()) {
    notes.push_back(fmt::format("readers of {} {} quantize inputs by '{}', missing for {}{}",
                                convention_->name, (*needs)->name, (*needs)->input_scale,
                                unscaled_.first, unscaled_.More()));
  }
  if (spread_.count > 0) {
    notes.push_back(
        fmt::format("weights that transformers decodes wrongly without an FP8 GPU: {}{}",
                    spread_.first, spread_.More()));
  }
  return notes;
}

std::vector<TensorEntry> ConventionWriter::Entries(const std::string& name,
                                                   const ForeignWeight& form) const {
  return PlanWritten(operation_, *convention_, FormatOf(name, form), name, form);
}

void ConventionWriter::Plan(const std::string& name, const ForeignWeight& form,
                            FileContents& contents) const {
  for (TensorEntry& entry : Entries(name, form)) {
    contents.AddPlain(std::move(entry.name), entry.dtype, std::move(entry.shape));
  }
}

void ConventionWriter::Write(const std::string& name, const CanonicalWeight& weight,
                             SafetensorsWriter& writer) const {
  const auto entries = Entries(name, weight.form);
  const auto scales = WrittenScales(weight, *convention_, FormatOf(name, weight.form));
  writer.Append(entries[0].name, weight.codes);
  for (std::size_t i = 0; i < scales.size(); ++i) writer.Append(entries[i + 1].name, scales[i]);
}

}  // namespace narrowfloat::io
