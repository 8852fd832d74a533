// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/quantize.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "narrowfloat/config/selection.h"
#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/tensor/error.h"
#include "tools/assumption.h"
#include "tools/choice.h"
#include "tools/command.h"
#include "tools/job.h"
#include "tools/job_report.h"
#include "tools/not_finite.h"
#include "tools/option_table.h"
#include "tools/scheme_option.h"
#include "tools/scratch_tensor.h"
#include "tools/tensor_values.h"

namespace narrowfloat::tools {
namespace {

using config::SelectionRule;

struct QuantizeOptions {
  std::string in, out, scheme, convention{io::kConventionName}, part = "1/1";
  std::vector<std::string> include, exclude;
  int threads = 0;
  bool overwrite = false, dry_run = false;
  std::vector<SelectionRule> rules;  // both lists, in the order of the command line
};

class QuantizeRewriter : public TensorRewriter {
 public:
  /// Makes a rewriter to options.convention. Errors: as io::ConventionWriter; as Choice.
  QuantizeRewriter(const QuantSpec& spec, const QuantizeOptions& options, const io::Checkpoint& in,
                   Execution execution)
      : foreign_(MakeWriter(options.convention)),
        choice_(in, options.rules, {Transposes(), !foreign_ || Transposes()}),
        spec_(spec),
        execution_(execution) {
    for (const io::TensorLocation& location : in.tensors()) {
      const io::StoredTensor& tensor = *location.tensor;
      if (!Rewrites(tensor)) {
        if (foreign_) foreign_->CheckCopy(tensor.entries.front());
        continue;
      }
      CheckShape(tensor);
      if (foreign_) foreign_->Add(tensor.name, FormOf(tensor));
    }
    if (foreign_) SayNotes(Verb(), foreign_->Notes());
  }

  const std::optional<io::ConventionWriter>& foreign() const { return foreign_; }
  const Choice& choice() const { return choice_; }

  /// Returns notes on the tensors that were rewritten.
  std::vector<std::string> Lost() const {
    return not_finite_.Notes("NaN or infinite values, which the result may not keep");
  }

  std::string Verb() const override { return "quantize"; }

  std::string CacheKey() const override {
    std::string text = PrintQuantSpec(spec_);
    if (foreign_) text += fmt::format("\n{}", foreign_->convention().name);
    return text + choice_.CacheKey();
  }

  bool Rewrites(const io::StoredTensor& tensor) const override {
    return choice_.Of(tensor).selected;
  }

  void Plan(const io::StoredTensor& tensor, io::FileContents& contents) const override {
    if (foreign_) {
      foreign_->Plan(tensor.name, FormOf(tensor), contents);
    } else {
      contents.AddQuantized(*Quantized(tensor).quantized);
    }
  }

  void Rewrite(const io::StoredTensor& tensor, const std::vector<std::span<const std::byte>>& input,
               io::SafetensorsWriter& writer) override {
    const Shape shape = InnerShape(tensor);
    const QuantizedView view = output_.Bind(spec_, shape);
    const DType dtype = *io::WideFloat(tensor.entries.front().dtype);
    const std::byte* values = input.front().data();
    if (Transposes()) {
      const auto turned = turned_.Take(input.front().size());
      TransposeMatrices(input.front(), tensor.shape(), ItemSize(dtype), turned);
      values = turned.data();
    }
    not_finite_.Add(tensor.name, CountNotFinite(dtype, input.front(), execution_));
    Quantize({values, dtype, shape, {}, Device::kCpu}, view, execution_);
    const auto& buffers = output_.buffers();
    const io::StoredTensor quantized = Quantized(tensor);
    if (foreign_) {
      io::CanonicalWeight weight = io::Canonical(quantized, buffers);
      weight.form = FormOf(tensor);
      foreign_->Write(tensor.name, weight, writer);
      return;
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      writer.Append(quantized.entries[i].name, buffers[i]);
    }
  }

 private:
  static std::optional<io::ConventionWriter> MakeWriter(const std::string& convention) {
    io::CheckIsConvention("quantize", convention, io::WrittenConventions());
    if (convention == io::kConventionName) return std::nullopt;
    return io::ConventionWriter("quantize", convention);
  }

  /// Returns whether the convention stores matrices that are [inputs, outputs] in the float
  /// model.
  bool Transposes() const {
    return foreign_ && foreign_->convention().weights.front().plain_is_transposed;
  }

  /// Returns the shape as [.., outputs, inputs].
  Shape InnerShape(const io::StoredTensor& tensor) const {
    Shape shape = tensor.shape();
    if (Transposes()) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
    return shape;
  }

  /// Rejects a shape that the scheme does not support, before anything is planned.
  void CheckShape(const io::StoredTensor& tensor) const {
    try {
      PlanQuantize(spec_, InnerShape(tensor));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(
          fmt::format("{} (tensor '{}' of shape {}; --exclude leaves it as it is)", error.what(),
                      tensor.name, ShapeText(tensor.shape())));
    }
  }

  io::ForeignWeight FormOf(const io::StoredTensor& tensor) const {
    io::ForeignWeight form = io::FormOf(Quantized(tensor));
    form.transposed = Transposes();
    form.shape = tensor.shape();
    return form;
  }

  /// Returns the tensor as stored in this library's convention.
  io::StoredTensor Quantized(const io::StoredTensor& tensor) const {
    return io::AsStored(
        {tensor.name, spec_, InnerShape(tensor), *io::WideFloat(tensor.entries.front().dtype)});
  }

  std::optional<io::ConventionWriter> foreign_;  // absent: this library's convention
  Choice choice_;
  QuantSpec spec_;
  Execution execution_;
  ScratchTensor output_;
  ByteBuffer turned_;
  NotFiniteTensors not_finite_;
};

/// Returns the rules of --include and --exclude in the order of the command line.
std::vector<SelectionRule> RulesOf(const CLI::App& app) {
  const CLI::Option* include = app.get_option("--include");
  const CLI::Option* exclude = app.get_option("--exclude");
  std::size_t included = 0, excluded = 0;
  std::vector<SelectionRule> rules;
  for (const CLI::Option* option : app.parse_order()) {
    if (option == include) {
      rules.emplace_back(SelectionRule::Action::kInclude, include->results().at(included++));
    } else if (option == exclude) {
      rules.emplace_back(SelectionRule::Action::kExclude, exclude->results().at(excluded++));
    }
  }
  return rules;
}

Result Run(const QuantizeOptions& options) {
  const QuantSpec spec = ParseScheme("quantize", options.scheme);
  JobOutput out{options.out, ParsePart(options.part), options.overwrite};
  const Execution execution = ExecutionOf(options.threads);
  const io::Checkpoint in = io::Checkpoint::Open(options.in);
  CheckIsFloat("quantize", in);
  QuantizeRewriter rewriter(spec, options, in, execution);
  rewriter.choice().Warn();
  if (options.dry_run) return rewriter.choice().List();
  if (!rewriter.foreign()) {
    out.companions = QuantizedCompanions(in, io::OwnConfig({PrintQuantSpec(spec)}));
  } else if (rewriter.foreign()->written()) {
    out.companions = OwnerCompanions(in, *rewriter.foreign(), rewriter);
  }
  JobResult job = RunJob(in, out, rewriter);
  if (rewriter.foreign()) job.notes = rewriter.foreign()->Notes();
  AddNotes("quantize", rewriter.Lost(), job.notes);
  return JobReport(job, "quantized",
                   {{"in", options.in},
                    {"out", options.out},
                    {"spec", PrintQuantSpec(spec)},
                    {"convention", options.convention},
                    {"part", options.part},
                    {"kernels", execution.kernels->name}});
}

}  // namespace

Command AddQuantize(CLI::App& app) {
  auto options = std::make_shared<QuantizeOptions>();
  CLI::App* command = AddCommand(app, "quantize");
  AddOption(command, "IN", options->in);
  AddOption(command, "OUT", options->out);
  AddOption(command, "--scheme", options->scheme);
  AddOption(command, "--include", options->include);
  AddOption(command, "--exclude", options->exclude);
  AddOption(command, "--convention", options->convention);
  AddOption(command, "--threads", options->threads);
  AddOption(command, "--dry-run", options->dry_run);
  AddOption(command, "--overwrite", options->overwrite);
  AddOption(command, "--part", options->part);
  return {command, [command, options] {
            options->rules = RulesOf(*command);
            return Run(*options);
          }};
}

}  // namespace narrowfloat::tools
