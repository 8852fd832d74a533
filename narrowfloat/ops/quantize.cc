// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/quantize.h"

#include "narrowfloat/ops/quantize_run.h"

namespace narrowfloat {

void Quantize(const ConstTensorView& in, const QuantizedView& out, const Execution& execution) {
  QuantizeRun run("quantize", in, out, execution);
  if (execution.IsNoop()) return;
  run.Prepare();
  run.QuantizeTiles();
  run.Finish();
}

}  // namespace narrowfloat
