// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/quantize.h"

#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/ops/quantize_run.h"

namespace narrowfloat {

void Quantize(const ConstTensorView& in, const QuantizedView& out, const Execution& execution) {
  QuantizeRun run("quantize", in, out, execution);
  if (execution.IsNoop()) return;
  run.Begin();
  const TileGrid grid = run.Grid();
  ParallelFor(execution, grid.Count(), [&](std::size_t i) { run.QuantizeTile(grid[i]); });
  run.End();
}

}  // namespace narrowfloat
