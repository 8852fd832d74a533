// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "narrowfloat/kernels/cuda/kernels.h"

namespace narrowfloat::cuda {

/// Returns the kernels of the scheme at a position of AllSchemes. Each is defined in an object of
/// its own, which scheme_kernels.cu is compiled to with that number.
template <std::size_t kIndex>
const SchemeKernels& KernelsOf();

}  // namespace narrowfloat::cuda
