// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "narrowfloat/io/block_fp8.h"
#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/read_quantized.h"
#include "narrowfloat/schemes/fp8_block.h"
#include "narrowfloat/tensor/error.h"
#include "tools/assumption.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/job.h"
#include "tools/job_report.h"
#include "tools/option_table.h"
#include "tools/option_values.h"
#include "tools/standard_error.h"
#include "tools/tensor_values.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

struct RequantizeOptions {
  std::string in, out, scale_format, from, to = "fp8", part = "1/1";
  int threads = 0;
  bool leave_misfits = false, overwrite = false;
};

std::string FitText(const io::TilePlace& tile, const io::ForeignWeight& form) {
  const std::string matrix =
      form.matrices > 1 ? fmt::format(" of matrix {}", tile.matrix) : std::string();
  return fmt::format("the tile [{}, {}]{}", tile.row, tile.col, matrix);
}

class RequantizeRewriter : public TensorRewriter {
 public:
  RequantizeRewriter(const io::Checkpoint& in, const RequantizeOptions& options)
      : options_(options),
        scale_format_(ValueIn(kScaleFormats, options.scale_format)),
        writer_("requantize", options.to) {
    TensorReader reader(ExecutionOf(options.threads));
    for (const io::TensorLocation& location : in.tensors()) {
      const io::StoredTensor& tensor = *location.tensor;
      if (!Rewrites(tensor)) {
        if (!Drops(tensor)) writer_.CheckCopy(tensor.entries.front());
        continue;
      }
      const io::ForeignWeight form = io::FormOf(tensor);
      if (!io::IsMxfp4(form) && !io::IsBlockFp8(form)) {
        throw Unsupported(fmt::format(
            "requantize: '{}' ({}) must be MXFP4 or block FP8 to become block FP8; dequantize "
            "takes any",
            tensor.name, io::FormatText(form)));
      }
      if (io::IsMxfp4(form)) {
        CheckFits(location, form, reader);
      } else if (scale_format_ != ScaleFormat::kFp32) {
        CheckScales(location, form, reader);
      }
      writer_.Add(tensor.name, TargetForm(tensor));
    }
  }

  std::string Verb() const override { return "requantize"; }
  std::string CacheKey() const override {
    return fmt::format("{} {}{}", writer_.convention().name, options_.scale_format,
                       options_.leave_misfits ? " leave" : "");
  }
  bool Rewrites(const io::StoredTensor& tensor) const override { return !tensor.IsPlain(); }
  bool Leaves(const io::StoredTensor& tensor) const override { return left_.contains(tensor.name); }
  bool Drops(const io::StoredTensor& tensor) const override { return tensor.accessory; }

  void Plan(const io::StoredTensor& tensor, io::FileContents& contents) const override {
    writer_.Plan(tensor.name, TargetForm(tensor), contents);
  }

  void Rewrite(const io::StoredTensor& tensor, const std::vector<std::span<const std::byte>>& input,
               io::SafetensorsWriter& writer) override {
    const io::CanonicalWeight weight = io::Canonical(tensor, input);
    if (Leaves(tensor)) return writer_.Write(tensor.name, weight, writer);
    io::CanonicalWeight result = Result(weight);
    if (scale_format_ == ScaleFormat::kFp32 && result.form.scale != io::FileDType::kF32) {
      result = io::WithFp32Scales(std::move(result));
    }
    writer_.Write(tensor.name, result, writer);
  }

  const io::ConventionWriter& writer() const { return writer_; }
  const io::Loss& loss() const { return loss_; }

 private:
  io::CanonicalWeight Result(const io::CanonicalWeight& weight) {
    if (io::IsMxfp4(weight.form)) return io::Mxfp4ToBlockFp8(weight, codes_, options_.threads);
    if (scale_format_ == ScaleFormat::kFp32) return weight;
    return io::ToPowerOfTwoScales(weight, codes_, options_.threads, loss_);
  }

  /// Returns the form in which the tensor is written.
  io::ForeignWeight TargetForm(const io::StoredTensor& tensor) const {
    io::ForeignWeight form = io::FormOf(tensor);
    form.input_scale.clear();  // the result has no input scales
    if (Leaves(tensor)) return form;
    form.codes = io::FileDType::kF8E4M3;
    form.block = {kFp8Block, kFp8Block};
    form.scale = scale_format_ == ScaleFormat::kFp32 ? io::FileDType::kF32 : io::FileDType::kF8E8M0;
    return form;
  }

  /// Checks an MXFP4 weight by its scales, and by its codes if the scales do not decide.
  void CheckFits(const io::TensorLocation& location, const io::ForeignWeight& form,
                 TensorReader& reader) {
    CheckInterrupt();
    const io::StoredTensor& tensor = *location.tensor;
    if (tensor.foreign) {
      const io::TensorEntry& entry = tensor.entries[1];
      scales_.resize(entry.Bytes());
      io::ReadBuffer(location, 1, scales_);
      if (!form.swizzled && io::FitByExponents(form, scales_)) return;
    }
    const auto unfit = io::FindUnfitTile(io::Canonical(tensor, reader.Bytes(location)));
    if (!unfit) return;
    if (!options_.leave_misfits) {
      throw InvalidArgument(fmt::format(
          "requantize: '{}': the values of {} must be E4M3 numbers times one power of two; "
          "--leave-misfits with --to deepseek-v4 keeps such tensors as they are",
          tensor.name, FitText(*unfit, form)));
    }
    PrintToStderr("requantize: left as it is: {} ({})\n", Escaped(tensor.name),
                  FitText(*unfit, form));
    left_.insert(tensor.name);
  }

  /// Checks a block FP8 weight by its scales, and by its codes if the scales do not decide (zeros,
  /// which may be padding of this library's convention).
  void CheckScales(const io::TensorLocation& location, const io::ForeignWeight& form,
                   TensorReader& reader) {
    CheckInterrupt();
    const io::StoredTensor& tensor = *location.tensor;
    const auto of_plan = std::ranges::find(tensor.plan, Role::kRowwiseScaleInv, &BufferPlan::role);
    const auto entry =
        tensor.foreign ? std::size_t{1} : static_cast<std::size_t>(of_plan - tensor.plan.begin());
    scales_.resize(tensor.entries[entry].Bytes());
    io::ReadBuffer(location, entry, scales_);
    if (io::HasPositiveScales(form.scale, scales_)) return;
    try {
      io::CheckTileScales(io::Canonical(tensor, reader.Bytes(location)));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("requantize: '{}': {}", tensor.name, error.what()));
    }
  }

  RequantizeOptions options_;
  ScaleFormat scale_format_;
  io::ConventionWriter writer_;
  std::unordered_set<std::string> left_;
  std::vector<std::byte> codes_, scales_;
  io::Loss loss_;
};

/// Rejects this library's own convention: it has one scheme per model and keeps no other weights.
void CheckTarget(const std::string& to) {
  if (to != io::kConventionName) return;
  throw Unsupported(
      fmt::format("requantize: OUT must be in another convention than this library's own, got "
                  "'{}'; convert --to {} takes the result of --to fp8",
                  to, to));
}

/// Adds what the values lost. An earlier run has not recorded what those of its files lost.
void AddLoss(const JobResult& job, const io::Loss& loss, Result& result) {
  const bool known = job.files_skipped == 0;
  const auto number = [&](auto value) { return known ? Json(value) : Json(nullptr); };
  result.json["values_rounded"] = number(loss.values);
  result.json["values_changed"] = number(loss.changed);
  result.json["largest_relative_change"] = number(loss.largest);
  if (!known) {
    result.text += "changes of values are unknown, because files were already there\n";
  } else if (loss.changed == 0) {
    result.text += "every value is as before\n";
  } else {
    result.text += fmt::format(
        "{} of {} values that were rounded again changed, by {:.3g} % of themselves at most\n",
        loss.changed, loss.values, 100 * loss.largest);
  }
}

Result Run(const RequantizeOptions& options) {
  CheckTarget(options.to);
  JobOutput out{options.out, ParsePart(options.part), options.overwrite};
  io::Checkpoint in = io::Checkpoint::Open(options.in);
  const io::DetectedConvention convention =
      SayAssumption("requantize", io::ReadQuantized("requantize", in, options.from));
  RequantizeRewriter rewriter(in, options);
  SayNotes("requantize", rewriter.writer().Notes());
  if (rewriter.writer().written())
    out.companions = OwnerCompanions(in, rewriter.writer(), rewriter);
  JobResult job = RunJob(in, out, rewriter);
  job.notes = NotesOf(convention, rewriter.writer().Notes());
  Result result = JobReport(job, "requantized",
                            {{"in", options.in},
                             {"out", options.out},
                             {"from", convention.name},
                             {"to", options.to},
                             {"format", rewriter.writer().FormatName()},
                             {"tensors_left", job.tensors_left},
                             {"part", options.part}});
  if (job.tensors_left > 0)
    result.text += fmt::format("{} left in MXFP4\n", CountText(job.tensors_left, "tensor"));
  AddLoss(job, rewriter.loss(), result);
  return result;
}

}  // namespace

Command AddRequantize(CLI::App& app) {
  auto options = std::make_shared<RequantizeOptions>();
  CLI::App* command = AddCommand(app, "requantize");
  AddOption(command, "IN", options->in);
  AddOption(command, "OUT", options->out);
  AddOption(command, "--scale-format", options->scale_format);
  AddOption(command, "--to", options->to);
  AddOption(command, "--from", options->from);
  AddOption(command, "--leave-misfits", options->leave_misfits);
  AddOption(command, "--threads", options->threads);
  AddOption(command, "--overwrite", options->overwrite);
  AddOption(command, "--part", options->part);
  return {command, [options] { return Run(*options); }};
}

}  // namespace narrowfloat::tools
