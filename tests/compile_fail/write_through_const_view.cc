// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

#if defined(NF_MUST_FAIL)
using View = ConstTensorView;
#else
using View = TensorView;
#endif

void Clear(const View& view) {
  *view.data = std::byte{0};
}

}  // namespace narrowfloat
