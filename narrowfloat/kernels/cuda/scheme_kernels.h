// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "narrowfloat/kernels/cuda/kernels.h"

namespace narrowfloat::cuda {

/// Returns the kernels of the scheme with that index in AllSchemes. scheme_kernels.cu is compiled
/// once for each index.
template <std::size_t kIndex>
const SchemeKernels& KernelsOf();

}  // namespace narrowfloat::cuda
