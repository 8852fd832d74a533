// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Everything a program needs: verbs over views, and types that own their buffers.

#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/delayed_scale.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/execution.h"
#include "narrowfloat/ops/hadamard.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/swizzle.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/plan.h"
#include "narrowfloat/tensor/quant_spec.h"
#include "narrowfloat/tensor/view.h"
#include "narrowfloat/types/float8_block_tensor.h"
#include "narrowfloat/types/float8_tensor.h"
#include "narrowfloat/types/mxfp8_tensor.h"
#include "narrowfloat/types/nvfp4_tensor.h"
#include "narrowfloat/types/owned_tensor.h"
#include "narrowfloat/types/quantized_tensor.h"
#include "narrowfloat/types/quantized_tensor_storage.h"
#include "narrowfloat/types/quantizer.h"
#include "narrowfloat/types/saving.h"
#include "narrowfloat/version.h"
