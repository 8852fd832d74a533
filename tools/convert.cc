// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/io/decode_weight.h"
#include "narrowfloat/io/own_form.h"
#include "narrowfloat/io/read_convention.h"
#include "narrowfloat/io/read_quantized.h"
#include "narrowfloat/tensor/error.h"
#include "tools/assumption.h"
#include "tools/byte_buffer.h"
#include "tools/command.h"
#include "tools/job.h"
#include "tools/job_report.h"
#include "tools/option_table.h"

namespace narrowfloat::tools {
namespace {

struct ConvertOptions {
  std::string in, out, to, from, part = "1/1";
  bool overwrite = false;
};

/// Keeps codes and scales, and changes their form in the files.
class ConvertRewriter : public TensorRewriter {
 public:
  std::string Verb() const override { return "convert"; }
  bool Rewrites(const io::StoredTensor& tensor) const override { return !tensor.IsPlain(); }

  /// Drops scales of activations: other conventions have other names for them, or none.
  bool Drops(const io::StoredTensor& tensor) const override { return tensor.accessory; }

  /// Returns the owner's names of the formats of the result.
  virtual std::string FormatName() const = 0;

  /// Returns the files beside the tensors.
  virtual Companions CompanionsFor(const io::Checkpoint& in) const = 0;

  /// Returns notes about weights that readers of the result may misread.
  virtual std::vector<std::string> Notes() const { return {}; }
};

class ToOtherRewriter : public ConvertRewriter {
 public:
  ToOtherRewriter(const io::Checkpoint& in, const std::string& to) : writer_("convert", to) {
    for (const io::TensorLocation& location : in.tensors()) {
      if (Rewrites(*location.tensor))
        writer_.Add(location.tensor->name, io::FormOf(*location.tensor));
    }
    for (const io::TensorLocation& location : in.tensors()) {
      if (!location.tensor->IsPlain()) KeepInputScale(*location.tensor);
    }
    for (const io::TensorLocation& location : in.tensors()) {
      const io::StoredTensor& tensor = *location.tensor;
      if (!Rewrites(tensor) && !Drops(tensor)) writer_.CheckCopy(tensor.entries.front());
    }
    SayNotes("convert", writer_.Notes());
  }

  bool Rewrites(const io::StoredTensor& tensor) const override {
    return ConvertRewriter::Rewrites(tensor) || input_scales_.contains(tensor.name);
  }
  bool Drops(const io::StoredTensor& tensor) const override {
    return ConvertRewriter::Drops(tensor) && !input_scales_.contains(tensor.name);
  }

  std::string CacheKey() const override {
    return fmt::format("{} {}", writer_.convention().name, FormatName());
  }
  std::string FormatName() const override { return writer_.FormatName(); }
  std::vector<std::string> Notes() const override { return writer_.Notes(); }
  Companions CompanionsFor(const io::Checkpoint& in) const override {
    // Without a weight there is no configuration; the job then reports that it has nothing to do.
    return writer_.written() ? OwnerCompanions(in, writer_, *this) : Companions{};
  }

  void Plan(const io::StoredTensor& tensor, io::FileContents& contents) const override {
    const auto scale = input_scales_.find(tensor.name);
    if (scale == input_scales_.end()) {
      writer_.Plan(tensor.name, io::FormOf(tensor), contents);
    } else {
      contents.AddPlain(scale->second.name, scale->second.dtype, scale->second.shape);
    }
  }

  void Rewrite(const io::StoredTensor& tensor, const std::vector<std::span<const std::byte>>& input,
               io::SafetensorsWriter& writer) override {
    const auto scale = input_scales_.find(tensor.name);
    if (scale == input_scales_.end()) {
      writer_.Write(tensor.name, io::Canonical(tensor, input), writer);
    } else {
      const float value = io::ScaleValue(tensor.entries.front().dtype, input.front(), 0);
      writer.Append(scale->second.name, std::as_bytes(std::span(&value, 1)));
    }
  }

 private:
  /// Records the input scale of a weight if the readers of its format need one.
  void KeepInputScale(const io::StoredTensor& weight) {
    const io::ForeignWeight form = io::FormOf(weight);
    if (form.input_scale.empty()) return;
    const auto written = io::WrittenInputScale(writer_.FormatOf(weight.name, form), weight.name);
    if (written) input_scales_.emplace(form.input_scale, *written);
  }

  io::ConventionWriter writer_;
  std::unordered_map<std::string, io::TensorEntry> input_scales_;  // written, by names of the input
};

/// Writes weights of other conventions as tensors of this library.
class ToOwnRewriter : public ConvertRewriter {
 public:
  explicit ToOwnRewriter(const io::Checkpoint& in) : dtype_(io::ModelDType(in)) {
    for (const io::TensorLocation& location : in.tensors()) {
      if (Rewrites(*location.tensor)) specs_.insert(PrintQuantSpec(Own(*location.tensor).spec));
    }
  }

  std::string CacheKey() const override {
    return fmt::format("{} {}", io::kConventionName, DTypeName(dtype_));
  }
  std::string FormatName() const override { return fmt::format("{}", fmt::join(specs_, ", ")); }
  Companions CompanionsFor(const io::Checkpoint& in) const override {
    return QuantizedCompanions(in, io::OwnConfig(specs_));
  }

  void Plan(const io::StoredTensor& tensor, io::FileContents& contents) const override {
    contents.AddQuantized(Own(tensor));
  }

  void Rewrite(const io::StoredTensor& tensor, const std::vector<std::span<const std::byte>>& input,
               io::SafetensorsWriter& writer) override {
    const io::StoredTensor own = io::AsStored(Own(tensor));
    std::size_t bytes = 0;
    for (const BufferPlan& buffer : own.plan) bytes += BufferBytes(buffer);
    std::span<std::byte> rest = output_.Take(bytes);
    std::vector<std::span<std::byte>> out;
    for (const BufferPlan& buffer : own.plan) {
      out.push_back(rest.first(BufferBytes(buffer)));
      rest = rest.subspan(BufferBytes(buffer));
    }
    io::StoreOwnBuffers(own, io::Canonical(tensor, input), out);
    for (std::size_t i = 0; i < out.size(); ++i) writer.Append(own.entries[i].name, out[i]);
  }

 private:
  io::QuantizedRecord Own(const io::StoredTensor& tensor) const {
    return {tensor.name, io::NeedOwnSpec("convert", tensor), tensor.shape(), dtype_};
  }

  DType dtype_;  // of the model's float tensors
  std::set<std::string> specs_;
  ByteBuffer output_;
};

std::unique_ptr<ConvertRewriter> RewriterOf(const io::Checkpoint& in, const std::string& from,
                                            const std::string& to) {
  io::CheckIsConvention("convert", to, io::WrittenConventions());
  if (to != io::kConventionName) return std::make_unique<ToOtherRewriter>(in, to);
  if (from != to) return std::make_unique<ToOwnRewriter>(in);
  throw InvalidArgument(fmt::format("convert: IN must be of another convention than '{}', got {}",
                                    to, in.path().string()));
}

Result Run(const ConvertOptions& options) {
  JobOutput out{options.out, ParsePart(options.part), options.overwrite};
  io::Checkpoint in = io::Checkpoint::Open(options.in);
  const io::DetectedConvention convention =
      SayAssumption("convert", io::ReadQuantized("convert", in, options.from));
  const auto rewriter = RewriterOf(in, convention.name, options.to);
  out.companions = rewriter->CompanionsFor(in);
  JobResult job = RunJob(in, out, *rewriter);
  job.notes = NotesOf(convention, rewriter->Notes());
  return JobReport(job, "converted",
                   {{"in", options.in},
                    {"out", options.out},
                    {"from", convention.name},
                    {"to", options.to},
                    {"format", rewriter->FormatName()},
                    {"part", options.part}});
}

}  // namespace

Command AddConvert(CLI::App& app) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command = AddCommand(app, "convert");
  AddOption(command, "IN", options->in);
  AddOption(command, "OUT", options->out);
  AddOption(command, "--to", options->to);
  AddOption(command, "--from", options->from);
  AddOption(command, "--overwrite", options->overwrite);
  AddOption(command, "--part", options->part);
  return {command, [options] { return Run(*options); }};
}

}  // namespace narrowfloat::tools
