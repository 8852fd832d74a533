// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

void Read(const ConstTensorView& view);
void Write(const TensorView& view);

void Use(const TensorView& writable, const ConstTensorView& readable) {
  Read(writable);  // a mutable view converts to a const view
#if defined(NF_MUST_FAIL)
  Write(readable);
#else
  Read(readable);
#endif
}

}  // namespace narrowfloat
