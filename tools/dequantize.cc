// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/detect_convention.h"
#include "narrowfloat/io/read_convention.h"
#include "narrowfloat/io/read_quantized.h"
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/tensor/error.h"
#include "tools/assumption.h"
#include "tools/command.h"
#include "tools/job.h"
#include "tools/job_report.h"
#include "tools/not_finite.h"
#include "tools/option_table.h"
#include "tools/option_values.h"
#include "tools/scheme_option.h"
#include "tools/tensor_values.h"

namespace narrowfloat::tools {
namespace {

struct DequantizeOptions {
  std::string in, out, dtype, from, part = "1/1";  // empty dtype: the recorded one
  int threads = 0;
  bool overwrite = false;
};

class DequantizeRewriter : public TensorRewriter {
 public:
  DequantizeRewriter(std::optional<DType> dtype, DType model_dtype, Execution execution)
      : dtype_(dtype), model_dtype_(model_dtype), execution_(execution) {}

  std::string Verb() const override { return "dequantize"; }

  std::string CacheKey() const override {
    return std::string(dtype_ ? DTypeName(*dtype_) : "recorded");
  }

  bool Rewrites(const io::StoredTensor& tensor) const override { return !tensor.IsPlain(); }

  bool Drops(const io::StoredTensor& tensor) const override { return tensor.accessory; }

  void Plan(const io::StoredTensor& tensor, io::FileContents& contents) const override {
    contents.AddPlain(tensor.name, io::FileDTypeOf(DTypeFor(tensor)), tensor.shape());
  }

  void Rewrite(const io::StoredTensor& tensor, const std::vector<std::span<const std::byte>>& input,
               io::SafetensorsWriter& writer) override {
    const DType dtype = DTypeFor(tensor);
    const auto out = output_.Take(FlattenShape(tensor.shape()).Size() * ItemSize(dtype));
    DequantizeStored(tensor, input, {out.data(), dtype, tensor.shape(), {}, Device::kCpu},
                     execution_);
    infinite_.Add(tensor.name, CountGained(tensor, input, dtype, out));
    writer.Append(tensor.name, out);
  }

  /// Returns notes on the tensors that were rewritten.
  std::vector<std::string> Lost() const {
    return infinite_.Notes("finite values that became infinite in the type of the result");
  }

 private:
  /// Counts the values that are infinite in `out`, of type `dtype`, but finite in fp32.
  std::uint64_t CountGained(const io::StoredTensor& tensor,
                            const std::vector<std::span<const std::byte>>& input, DType dtype,
                            std::span<const std::byte> out) {
    const std::uint64_t found = CountNotFinite(dtype, out, execution_);
    if (found == 0 || dtype == DType::kFloat32) return 0;
    const auto wide = wide_.Take(out.size() / ItemSize(dtype) * sizeof(float));
    DequantizeStored(tensor, input,
                     {wide.data(), DType::kFloat32, tensor.shape(), {}, Device::kCpu}, execution_);
    return found - CountNotFinite(DType::kFloat32, wide, execution_);
  }

  DType DTypeFor(const io::StoredTensor& tensor) const {
    return dtype_.value_or(tensor.quantized ? tensor.quantized->dtype : model_dtype_);
  }

  std::optional<DType> dtype_;
  DType model_dtype_;  // for foreign weights, which do not record a type
  Execution execution_;
  ByteBuffer output_, wide_;
  NotFiniteTensors infinite_;
};

/// Rejects tensors whose values would be those of the Hadamard transform. Errors: Unsupported.
void CheckIsNotTransformed(const io::Checkpoint& in) {
  for (const io::TensorLocation& location : in.tensors()) {
    const io::StoredTensor& tensor = *location.tensor;
    if (!tensor.quantized || !IsTransformed(tensor.quantized->spec)) continue;
    throw Unsupported(fmt::format(
        "dequantize: a tensor must have rowwise codes or no Hadamard transform (rht), which is not "
        "undone, got {} for '{}'",
        PrintQuantSpec(tensor.quantized->spec), tensor.name));
  }
}

Result Run(const DequantizeOptions& options) {
  JobOutput out{options.out, ParsePart(options.part), options.overwrite};
  const Execution execution = ExecutionOf(options.threads);
  io::Checkpoint in = io::Checkpoint::Open(options.in);
  const io::DetectedConvention convention =
      SayAssumption("dequantize", io::ReadQuantized("dequantize", in, options.from));
  CheckIsNotTransformed(in);
  out.companions = PlainCompanions(in);
  std::optional<DType> dtype;
  if (!options.dtype.empty()) dtype = ValueIn(kFloatTypes, options.dtype);
  DequantizeRewriter rewriter(dtype, io::ModelDType(in), execution);
  JobResult job = RunJob(in, out, rewriter);
  job.notes = NotesOf(convention, {});
  AddNotes("dequantize", rewriter.Lost(), job.notes);
  return JobReport(job, "dequantized",
                   {{"in", options.in},
                    {"out", options.out},
                    {"dtype", rewriter.CacheKey()},
                    {"convention", convention.name},
                    {"part", options.part},
                    {"kernels", execution.kernels->name}});
}

}  // namespace

Command AddDequantize(CLI::App& app) {
  auto options = std::make_shared<DequantizeOptions>();
  CLI::App* command = AddCommand(app, "dequantize");
  AddOption(command, "IN", options->in);
  AddOption(command, "OUT", options->out);
  AddOption(command, "--dtype", options->dtype);
  AddOption(command, "--from", options->from);
  AddOption(command, "--threads", options->threads);
  AddOption(command, "--overwrite", options->overwrite);
  AddOption(command, "--part", options->part);
  return {command, [options] { return Run(*options); }};
}

}  // namespace narrowfloat::tools
