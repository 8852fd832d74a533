/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "narrowfloat/c_api.h"

int main(void) {
  float ones[32];
  uint8_t codes[32], scale_inv[512];
  const int64_t shape[1] = {32};
  for (int i = 0; i < 32; ++i) ones[i] = 1.0f;
  const nf_tensor in = {sizeof in, ones, shape, NULL, 1, NF_FLOAT32};
  const nf_buffer buffers[2] = {
      {sizeof(nf_buffer), codes, sizeof codes, NF_ROWWISE_DATA, 0},
      {sizeof(nf_buffer), scale_inv, sizeof scale_inv, NF_ROWWISE_SCALE_INV, 0},
  };
  if (nf_quantize("mxfp8_e4m3", &in, buffers, 2, NULL) != NF_OK) {
    fprintf(stderr, "%s\n", nf_last_error());
    return 1;
  }
  printf("codes %x, scale_inv %d, narrowfloat %s\n", (unsigned)codes[0], (int)scale_inv[0],
         nf_version());
  return 0;
}
