// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include "narrowfloat/narrowfloat.h"

int main(int count, char**) {
  const int narrowed = 1.5 * count;  // would fail under the library's -Wconversion and -Werror
  const std::vector<float> x(64 * 256, 0.3f);
  const narrowfloat::ConstTensorView view{
      reinterpret_cast<const std::byte*>(x.data()), narrowfloat::DType::kFloat32, {64, 256}};
  const narrowfloat::QuantizedTensor q =
      narrowfloat::MXFP8Quantizer(narrowfloat::E4M3::kName).Quantize(view);
  return narrowed == 0 || q.ConstView().shape.empty() ? 1 : 0;
}
