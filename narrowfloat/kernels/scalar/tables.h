// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat::scalar {

// The parts of ScalarKernels(), one per file.
ByType<AmaxFn> AmaxTable();
ByType<ColumnSumFn> ColumnSumTable();
ByType<AmaxSumFn> AmaxSumTable();
ByType<ColumnAmaxFn> ColumnAmaxTable();
ByType<HadamardFn> HadamardTable();
QuantizeSlots QuantizeTable();
DequantizeSlots DequantizeTable();

}  // namespace narrowfloat::scalar
