// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/quantize.h"

#include "narrowfloat/ops/backend.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/call_tensors.h"

namespace narrowfloat {

void Quantize(const ConstTensorView& in, const QuantizedView& out, const Execution& execution) {
  CallTensors call("quantize");
  AddQuantizing("quantize", in, out, call);
  call.Check().Quantize(in, *PlannedView(out), execution);
}

}  // namespace narrowfloat
