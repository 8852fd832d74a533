// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/cpu_backend.h"
#include "narrowfloat/ops/cpu/quantize_run.h"
#include "narrowfloat/ops/parallel.h"

namespace narrowfloat {
namespace {

void QuantizeAll(const ConstTensorView& in, const QuantizedView& out, const Execution& execution) {
  QuantizeRun run(in, out, execution);
  run.Prepare();
  run.QuantizeTiles();
  run.Finish();
}

}  // namespace

void CpuBackend::Quantize(const ConstTensorView& in, const QuantizedView& out,
                          const Execution& execution) const {
  if (!execution.IsNoop()) QuantizeAll(in, out, execution);
}

void CpuBackend::GroupedQuantize(std::span<const ConstTensorView> ins,
                                 std::span<const QuantizedView> outs,
                                 const Execution& execution) const {
  if (execution.IsNoop()) return;
  // Many groups run in parallel. Few groups run one by one, and each uses all threads.
  if (ins.size() >= 2 * ThreadCount(execution)) {
    const Execution alone = execution.OnThisThread();
    return ParallelFor(execution, ins.size(),
                       [&](std::size_t g) { QuantizeAll(ins[g], outs[g], alone); });
  }
  for (std::size_t g = 0; g < ins.size(); ++g) QuantizeAll(ins[g], outs[g], execution);
}

}  // namespace narrowfloat
