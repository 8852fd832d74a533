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

/// Formats of quantized elements.
using ElementFormats = TypeList<E4M3, E5M2, E2M1>;

}  // namespace narrowfloat
