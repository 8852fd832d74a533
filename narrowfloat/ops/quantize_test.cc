// SPDX-License-Identifier: Apache-2.0
// Tests, on the CPU, that verbs write only buffers of the spec, and no buffer if they throw.
#include "narrowfloat/ops/quantize.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <utility>
#include <vector>

#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/grouped.h"
#include "narrowfloat/ops/requantize.h"
#include "narrowfloat/ops/testing.h"
#include "narrowfloat/tensor/layout.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat {
namespace {

TEST(QuantizeTest, LeavesBuffersAloneThatTheSpecDoesNotAskFor) {
  const Shape shape{34, 66};  // scales have padding
  std::vector<float> items(FlattenShape(shape).Size(), 3.0f);
  const TensorView in{reinterpret_cast<std::byte*>(items.data()), DType::kFloat32, shape};
  for (const SchemeInfo& scheme : kSchemes) {
    for (const Direction left_out : {Direction::kRowwise, Direction::kColumnwise}) {
      SCOPED_TRACE(fmt::format("{} {}", scheme.name,
                               left_out == Direction::kRowwise ? "rowwise" : "columnwise"));
      std::array<std::vector<std::byte>, kRoleCount> memory;
      const auto fill = [&](const BufferPlan& buffer) {
        auto& bytes = memory[static_cast<std::size_t>(buffer.role)];
        bytes.assign(BufferBytes(buffer), std::byte{0xAB});
        return bytes.data();
      };
      auto view = BindBuffers<QuantizedView>({.scheme = &scheme, .columnwise = true}, shape, fill);
      (left_out == Direction::kRowwise ? view.spec.rowwise : view.spec.columnwise) = false;
      Quantize(in, view);
      for (std::size_t i = 0; i < kRoleCount; ++i) {
        if (HasRole(view.spec, static_cast<Role>(i))) continue;
        const std::vector<std::byte> untouched(memory[i].size(), std::byte{0xAB});
        EXPECT_EQ(memory[i], untouched) << RoleName(static_cast<Role>(i));
      }
    }
  }
}

TEST(QuantizeTest, WritesNothingUnderAWrongNumberOfThreads) {
  const Shape shape{34, 66};
  std::vector<float> items(FlattenShape(shape).Size(), 3.0f), sums(66, 3.0f);
  const TensorView in{reinterpret_cast<std::byte*>(items.data()), DType::kFloat32, shape};
  const TensorView dbias{reinterpret_cast<std::byte*>(sums.data()), DType::kFloat32, {66}};
  std::vector<std::byte> memory(std::size_t{1} << 16, std::byte{0xAB});
  const std::vector<std::byte> untouched = memory;
  for (const SchemeInfo& scheme : kSchemes) {
    std::size_t used = 0;
    const auto next = [&](const BufferPlan& buffer) {
      return memory.data() + std::exchange(used, used + RoundUp(BufferBytes(buffer), 64));
    };
    const QuantSpec spec{.scheme = &scheme, .columnwise = true};
    const auto out = BindBuffers<QuantizedView>(spec, shape, next);
    ASSERT_LE(used, memory.size());
    const auto expect_refused = [&](const Execution& execution, const char* message) {
      EXPECT_EQ(MessageOf([&] { Quantize(in, out, execution); }), message);
      EXPECT_EQ(MessageOf([&] { QuantizeDbias(in, out, dbias, execution); }), message);
      EXPECT_EQ(MessageOf([&] {
                  GroupedQuantize(std::vector<ConstTensorView>{in}, std::vector{out}, execution);
                }),
                message);
    };
    expect_refused({.threads = -1}, "threads: must be 0 (choose) or a number of threads, got -1");
    setenv("NF_NUM_THREADS", "x", 1);
    expect_refused({}, "threads: NF_NUM_THREADS must be an integer from 1 to 2147483647, got 'x'");
    unsetenv("NF_NUM_THREADS");
    EXPECT_EQ(memory, untouched) << scheme.name;
    EXPECT_EQ(sums, std::vector<float>(66, 3.0f)) << scheme.name;
  }
}

TEST(RequantizeTest, ABufferThatTheSpecDoesNotAskForHidesNoOverlap) {
  const Floats items(128 * 128, 3.0f);
  Quantized in("fp8_block128x128_e4m3", {128, 128}, items);
  Quantized out("fp8_e4m3:columnwise=1", {128, 128}, items);
  out.view.spec.rowwise = false;  // its scale_inv is at the address of the columnwise one
  in.view[Role::kRowwiseScaleInv].data = out.view[Role::kColumnwiseScaleInv].data;
  EXPECT_EQ(MessageOf([&] { Requantize(in.view, out.view, DType::kBFloat16); }),
            "requantize: columnwise_scale_inv of the output must not overlap rowwise_scale_inv");
}

TEST(RequantizeTest, AnInputWithoutADirectionIsRefusedUnderTheVerb) {
  const Floats items(128 * 128, 3.0f);
  const Quantized out("fp8_e4m3", {128, 128}, items);
  const QuantizedView nothing{ParseQuantSpec("mxfp8_e4m3"), {128, 128}, {}};
  EXPECT_EQ(MessageOf([&] { Requantize(nothing, out.view, DType::kBFloat16); }),
            "requantize: mxfp8_e4m3 needs data and scale_inv of one direction, got neither rowwise "
            "nor columnwise");
}

}  // namespace
}  // namespace narrowfloat
