// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/execution.h"

#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat {

const KernelTable& Execution::Kernels() const {
  return kernels != nullptr ? *kernels : ActiveKernels();
}

}  // namespace narrowfloat
