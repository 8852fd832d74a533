// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/reference_cases.h"

#include <fmt/format.h>

#include <iterator>

#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat::conformance {

const Execution& OnCpu() {
  static const Execution execution{.threads = 1, .kernels = &ScalarKernels()};
  return execution;
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes{{},         {1},       {1, 1},     {1, 33},        {33, 1},
                            {5, 7},     {6, 10},   {64, 64},   {65, 48},       {0, 64},
                            {64, 0},    {3, 0, 5}, {3, 5, 67}, {2, 3, 34, 34}, {130, 131},
                            {144, 272}, {40, 300}, {256, 384}};
  if (IsRealDevice()) {
    for (const Shape& shape :
         {Shape{2304, 64}, Shape{32, 4288}, Shape{1000, 1000}, Shape{512, 2048}, Shape{7, 129, 130},
          Shape{1, 100000}, Shape{100000, 1}})
      shapes.push_back(shape);
  }
  return shapes;
}

Placement NextPlacement() {
  static std::mt19937_64 random(RunSeed());
  constexpr std::size_t kCount = std::size(kPlacements);
  const auto i = static_cast<std::size_t>(random() % (kCount + 1));
  return i < kCount ? kPlacements[i] : Placement::kInsideLine;
}

FloatTensor RandomTensor(DType dtype, const Shape& shape, std::mt19937_64& random, Range range,
                         Placement placement) {
  FloatTensor tensor(dtype, shape, placement);
  FillWithSpecials(tensor, random, range);
  return tensor;
}

void FillRandom(QuantizedBuffers& buffers, std::mt19937_64& random) {
  for (const BufferPlan& buffer : buffers.plan()) {
    for (std::size_t i = 0; i < BufferBytes(buffer); ++i)
      buffers.Data(buffer.role)[i] = static_cast<std::byte>(random());
  }
}

std::string Seed() {
  return fmt::format("NF_TEST_SEED={}", RunSeed());
}

}  // namespace narrowfloat::conformance
