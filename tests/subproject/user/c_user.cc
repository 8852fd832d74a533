// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "narrowfloat/c_api.h"

int main() {
  return std::puts(nf_version()) < 0;
}
