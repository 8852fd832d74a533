// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <vector>

#include "narrowfloat/narrowfloat.h"

int main() {
  using namespace narrowfloat;
  const std::vector<float> ones(32 * 32, 1.0f);
  const auto* bytes = reinterpret_cast<const std::byte*>(ones.data());
  const QuantizedTensor q =
      MXFP8Quantizer(E4M3::kName).Quantize({bytes, DType::kFloat32, {32, 32}, {}, Device::kCpu});
  std::printf("codes %x, scale_inv %d, narrowfloat %s\n",
              std::to_integer<unsigned>(q.ConstView()[Role::kRowwiseData].data[0]),
              std::to_integer<int>(q.ConstView()[Role::kRowwiseScaleInv].data[0]), NF_VERSION);
  return 0;
}
