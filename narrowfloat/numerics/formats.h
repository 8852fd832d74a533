// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/numerics/float_format.h"
#include "narrowfloat/numerics/formats/bfloat16.h"
#include "narrowfloat/numerics/formats/e2m1.h"
#include "narrowfloat/numerics/formats/e4m3.h"
#include "narrowfloat/numerics/formats/e5m2.h"
#include "narrowfloat/numerics/formats/float16.h"
#include "narrowfloat/numerics/type_list.h"

namespace narrowfloat {

/// The formats a tensor's elements are quantized to.
using ElementFormats = TypeList<E4M3, E5M2, E2M1>;

/// The 16-bit formats a tensor comes from and goes back to, beside binary32.
using WideFormats = TypeList<Float16, BFloat16>;

}  // namespace narrowfloat
