// SPDX-License-Identifier: Apache-2.0
#include "tools/speed/workload.h"

#include <fmt/format.h>

#include <utility>

#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"
#include "tools/speed/streams.h"

namespace narrowfloat::speed {
namespace {

QuantSpec MakeSpec(const SchemeInfo& scheme, Direction direction) {
  return {.scheme = &scheme,
          .rowwise = direction != Direction::kColumnwise,
          .columnwise = direction != Direction::kRowwise};
}

/// Makes the workloads of one backend.
class WorkloadBuilder {
 public:
  WorkloadBuilder(const Memory& memory, const Execution& execution, std::size_t past_line,
                  std::vector<Workload>& workloads)
      : memory_(memory),
        execution_(execution),
        past_line_(past_line),
        elements_(FlattenShape(memory.shape()).Size()),
        workloads_(workloads) {}

  void AddAll(DType dtype) {
    AddAmax(dtype);
    for (const SchemeInfo& scheme : kSchemes) {
      for (const Direction direction :
           {Direction::kRowwise, Direction::kColumnwise, Direction::kBoth}) {
        AddQuantize(scheme, direction, dtype);
      }
      AddDequantize(scheme, Direction::kRowwise, dtype);
      AddDequantize(scheme, Direction::kColumnwise, dtype);
    }
  }

 private:
  std::size_t FloatBytes(DType dtype) const { return elements_ * ItemSize(dtype); }

  void AddAmax(DType dtype) {
    workloads_.push_back({.verb = Verb::kAmax,
                          .spec = {},
                          .direction = Direction::kRowwise,
                          .dtype = dtype,
                          .backend = execution_.kernels->name,
                          .elements = elements_,
                          .extra_read_bytes = 0,
                          .read_bytes = FloatBytes(dtype),
                          .write_bytes = 0,
                          .run = [in = memory_.Input(dtype, past_line_), execution = execution_] {
                            static_cast<void>(Amax(in, execution));
                          }});
  }

  void AddQuantize(const SchemeInfo& scheme, Direction direction, DType dtype) {
    QuantSpec spec = MakeSpec(scheme, direction);
    AddQuantize(spec, direction, dtype);
    if (scheme.options.Has(Option::kScale)) {
      spec.scale = 64.0f;
    } else if (scheme.options.Has(Option::kAmax)) {
      spec.amax = 8.0f;  // above the data's amax
    } else {
      return;
    }
    AddQuantize(spec, direction, dtype);
    AddVariants(spec, direction, dtype);
  }

  /// Adds the scheme with each option that adds work, one at a time.
  void AddVariants(const QuantSpec& plain, Direction direction, DType dtype) {
    const OptionSet options = plain.scheme->options;
    if (options.Has(Option::kStochasticRounding)) {
      QuantSpec spec = plain;
      spec.stochastic_rounding = true;
      AddQuantize(spec, direction, dtype);
    }
    if (options.Has(Option::kHadamard) && direction != Direction::kRowwise) {
      QuantSpec spec = plain;
      spec.rht = true;
      spec.amax_columnwise = 16.0f;  // above the transformed data's amax
      AddQuantize(spec, direction, dtype);
      spec.amax = spec.amax_columnwise = std::nullopt;  // the transform's amax adds a pass too
      AddQuantize(spec, direction, dtype);
    }
    if (options.Has(Option::kFourOverSix)) {
      QuantSpec spec = plain;
      spec.four_over_six = FourOverSix::kMeanAbsoluteError;
      AddQuantize(spec, direction, dtype);
    }
  }

  void AddQuantize(const QuantSpec& spec, Direction direction, DType dtype) {
    const SchemeInfo& scheme = *spec.scheme;
    const bool amax_first = scheme.options.Has(Option::kAmax) && !spec.scale && !spec.amax;
    workloads_.push_back(
        {.verb = Verb::kQuantize,
         .spec = spec,
         .direction = direction,
         .dtype = dtype,
         .backend = execution_.kernels->name,
         .elements = elements_,
         .extra_read_bytes = amax_first ? FloatBytes(dtype) : 0,
         .read_bytes = FloatBytes(dtype),
         .write_bytes = CodeBytes(scheme, elements_) * (direction == Direction::kBoth ? 2 : 1),
         .run = [in = memory_.Input(dtype, past_line_), out = memory_.Quantized(spec, past_line_),
                 execution = execution_] { Quantize(in, out, execution); }});
  }

  /// Adds a workload that first quantizes the codes to decode, since workloads share their memory.
  void AddDequantize(const SchemeInfo& scheme, Direction direction, DType dtype) {
    const QuantSpec spec = MakeSpec(scheme, direction);
    const QuantizedView codes = memory_.Quantized(spec, past_line_);
    workloads_.push_back(
        {.verb = Verb::kDequantize,
         .spec = spec,
         .direction = direction,
         .dtype = dtype,
         .backend = execution_.kernels->name,
         .elements = elements_,
         .extra_read_bytes = 0,
         .read_bytes = CodeBytes(scheme, elements_),
         .write_bytes = FloatBytes(dtype),
         .run = [in = ConstQuantizedView(codes), out = memory_.Output(dtype, past_line_),
                 execution = execution_] { Dequantize(in, out, execution); },
         .prepare = [in = memory_.Input(dtype, past_line_), codes,
                     execution = execution_] { Quantize(in, codes, execution); }});
  }

  const Memory& memory_;
  const Execution& execution_;
  std::size_t past_line_;
  std::size_t elements_;
  std::vector<Workload>& workloads_;
};

}  // namespace

std::string_view VerbName(Verb verb) {
  static constexpr std::string_view kNames[] = {"amax", "quantize", "dequantize"};
  return kNames[static_cast<std::size_t>(verb)];
}

std::string_view DirectionName(Direction direction) {
  static constexpr std::string_view kNames[] = {"rowwise", "columnwise", "both"};
  return kNames[static_cast<std::size_t>(direction)];
}

std::string Workload::Name() const {
  if (verb == Verb::kAmax) return fmt::format("{} {}", VerbName(verb), DTypeName(dtype));
  std::string way;
  if (verb == Verb::kQuantize && spec.scheme->options.Has(Option::kScale)) {
    way = spec.scale ? "(scale given)" : "(current)";
  } else if (verb == Verb::kQuantize && spec.scheme->options.Has(Option::kAmax)) {
    way = fmt::format("({}{}{}{})", spec.amax ? "amax given" : "amax measured",
                      spec.stochastic_rounding ? ", stochastic" : "", spec.rht ? ", RHT" : "",
                      spec.four_over_six != FourOverSix::kOff ? ", 4over6" : "");
  }
  return fmt::format("{}{} {} {} {}", VerbName(verb), way, spec.scheme->name,
                     DirectionName(direction), DTypeName(dtype));
}

bool Workload::HasOptions() const {
  return spec != MakeSpec(*spec.scheme, direction);
}

void Workload::RunStream(const Memory& memory, const Execution& execution) const {
  if (extra_read_bytes != 0)
    SameTraffic(memory.StreamIn(), extra_read_bytes, nullptr, 0, execution);
  SameTraffic(memory.StreamIn(), read_bytes, memory.StreamOut(), write_bytes, execution);
}

std::vector<Workload> MakeWorkloads(const Memory& memory, const Execution& execution,
                                    std::size_t past_line) {
  std::vector<Workload> workloads;
  for (const KernelTable* backend : AvailableKernels()) {
    if (execution.kernels != nullptr && execution.kernels != backend) continue;
    Execution on_backend = execution;
    on_backend.kernels = backend;
    WorkloadBuilder builder(memory, on_backend, past_line, workloads);
    for (const DType dtype : memory.types()) builder.AddAll(dtype);
  }
  return workloads;
}

}  // namespace narrowfloat::speed
