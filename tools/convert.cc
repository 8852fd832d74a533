// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/read_quantized.h"
#include "tools/command.h"
#include "tools/foreign_writer.h"
#include "tools/job.h"
#include "tools/option_table.h"

namespace narrowfloat::tools {
namespace {

struct ConvertOptions {
  std::string in, out, to, from, part = "1/1";
  bool overwrite = false;
};

class ConvertRewriter : public TensorRewriter {
 public:
  ConvertRewriter(const io::Checkpoint& in, const std::string& to) : writer_("convert", to) {
    for (const io::TensorLocation& location : in.tensors()) {
      if (Rewrites(*location.tensor))
        writer_.Add(location.tensor->name, io::FormOf(*location.tensor));
    }
  }

  std::string Verb() const override { return "convert"; }
  std::string Identity() const override {
    return fmt::format("{} {}", writer_.convention().name, writer_.FormatName());
  }
  bool Rewrites(const io::StoredTensor& tensor) const override { return !tensor.IsPlain(); }

  /// Scales of activations have other names and meanings elsewhere.
  bool Drops(const io::StoredTensor& tensor) const override { return tensor.accessory; }

  void Plan(const io::StoredTensor& tensor, io::FileContents& contents) const override {
    writer_.Plan(tensor.name, io::FormOf(tensor), contents);
  }

  void Rewrite(const io::StoredTensor& tensor, const std::vector<std::span<const std::byte>>& input,
               io::SafetensorsWriter& writer) override {
    writer_.Write(tensor.name, io::Canonical(tensor, input), writer);
  }

  const ForeignWriter& writer() const { return writer_; }

 private:
  ForeignWriter writer_;
};

Result Run(const ConvertOptions& options) {
  JobOutput out{options.out, ParsePart(options.part), options.overwrite};
  io::Checkpoint in = io::Checkpoint::Open(options.in);
  const io::ConventionGuess convention = io::ReadQuantized("convert", in, options.from);
  ConvertRewriter rewriter(in, options.to);
  out.companions = rewriter.writer().Configuration(in, rewriter);
  const JobResult job = RunJob(in, out, rewriter);
  return JobReport(job, "converted",
                   {{"in", options.in},
                    {"out", options.out},
                    {"from", convention.name},
                    {"to", options.to},
                    {"format", rewriter.writer().FormatName()},
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
