// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/amax.h"

#include <algorithm>
#include <vector>

#include "narrowfloat/ops/float_environment.h"
#include "narrowfloat/ops/input.h"
#include "narrowfloat/ops/parallel.h"

namespace narrowfloat {

float Amax(const ConstTensorView& in, const Execution& execution) {
  Rows<const std::byte> rows;
  FillRows("amax", "the input", in, rows);
  const KernelTable& kernels = execution.kernels != nullptr ? *execution.kernels : ActiveKernels();
  const AmaxFn amax = kernels.amax[static_cast<std::size_t>(in.dtype)];
  const FloatEnvironment environment;  // a comparison, too, flushes subnormals if told to
  const TileGrid grid = MakeTileGrid(rows.shape, 1, 1);
  std::vector<float> amaxes(grid.Count());
  ParallelFor(execution, grid.Count(),
              [&](std::size_t i) { amaxes[i] = amax(rows.matrix, grid[i]); });
  return amaxes.empty() ? 0.0f : *std::max_element(amaxes.begin(), amaxes.end());
}

}  // namespace narrowfloat
