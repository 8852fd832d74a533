// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include "narrowfloat/kernels/cuda/scheme_kernels.h"
#include "narrowfloat/schemes/registry.h"

namespace narrowfloat::cuda {
namespace {

using Getter = const SchemeKernels& (*)();

template <std::size_t... kIndices>
constexpr std::array<Getter, sizeof...(kIndices)> Getters(std::index_sequence<kIndices...>) {
  return {&KernelsOf<kIndices>...};
}

}  // namespace

const SchemeKernels& KernelsOfScheme(std::size_t scheme) {
  static constexpr auto kGetters =
      Getters(std::make_index_sequence<std::tuple_size_v<decltype(kOwnSchemes)>>{});
  return kGetters[scheme]();
}

}  // namespace narrowfloat::cuda
