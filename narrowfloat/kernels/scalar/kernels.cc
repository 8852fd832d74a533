// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/kernels/scalar/tables.h"

namespace narrowfloat {

const KernelTable& ScalarKernels() {
  static const KernelTable table{"scalar",
                                 scalar::AmaxTable(),
                                 scalar::ColumnSumTable(),
                                 scalar::AmaxSumTable(),
                                 scalar::ColumnAmaxTable(),
                                 scalar::HadamardTable(),
                                 scalar::QuantizeTable(),
                                 scalar::DequantizeTable()};
  return table;
}

}  // namespace narrowfloat
