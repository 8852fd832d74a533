// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cuda/cuda_backend.h"
