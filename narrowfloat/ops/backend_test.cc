// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/delayed_scale.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/derive_columnwise.h"
#include "narrowfloat/ops/grouped.h"
#include "narrowfloat/ops/hadamard.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/requantize.h"
#include "narrowfloat/ops/swizzle.h"
#include "narrowfloat/ops/testing.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat {
namespace {

constexpr Device kDevice = Device::kCuda;

/// Memory of a device, which the host can neither read nor write: a public function that accesses a
/// tensor ends the test with SIGSEGV.
class DeviceMemory {
 public:
  DeviceMemory() {
    void* memory = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    begin_ = static_cast<std::byte*>(memory);
  }
  ~DeviceMemory() { munmap(begin_, kBytes); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* Allocate(std::size_t bytes) {
    std::byte* memory = begin_ + used_;
    used_ += RoundUp(bytes, 64);
    if (used_ > kBytes) throw std::bad_alloc();
    return memory;
  }
  TensorView Tensor(DType dtype, const Shape& shape) {
    return {Allocate(FlattenShape(shape).Size() * ItemSize(dtype)), dtype, shape, {}, kDevice};
  }
  QuantizedView Quantized(std::string_view spec, const Shape& shape) {
    std::array<std::byte*, kRoleCount> memory{};
    return BindBuffers<QuantizedView>(
        ParseQuantSpec(spec), shape,
        [&](const BufferPlan& buffer) {
          std::byte*& bytes = memory[static_cast<std::size_t>(buffer.storage)];
          if (bytes == nullptr) bytes = Allocate(BufferBytes(buffer));
          return bytes;
        },
        kDevice);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{64} << 20;
  std::byte* begin_ = nullptr;
  std::size_t used_ = 0;
};

template <class Byte>
std::string Text(const BasicTensorView<Byte>& view) {
  EXPECT_EQ(view.device, kDevice);
  EXPECT_NE(view.data, nullptr);
  return fmt::format("{} {}", DTypeName(view.dtype), ShapeText(view.shape));
}

template <class Byte>
std::string Text(const BasicQuantizedView<Byte>& view) {
  for (const BasicTensorView<Byte>& buffer : view.buffers) {
    EXPECT_TRUE(buffer.data == nullptr || buffer.device == kDevice);
  }
  return fmt::format("{} {}", PrintQuantSpec(view.spec), ShapeText(view.shape));
}

/// Returns Text(view) and the names of buffers that are not in the spec's plan.
template <class Byte>
std::string TextWithStrays(const BasicQuantizedView<Byte>& view) {
  std::string text = Text(view);
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    const Role role = static_cast<Role>(i);
    if (view[role].data != nullptr && !HasRole(view.spec, role))
      text += fmt::format(" with a stray {}", RoleName(role));
  }
  return text;
}

std::string Text(Direction direction) {
  return direction == Direction::kRowwise ? "rowwise" : "columnwise";
}

/// Records each call, and computes nothing.
class RecordingBackend final : public Backend {
 public:
  mutable std::vector<std::string> calls;
  mutable const float* noop = nullptr;  // in the latest call
  bool fails = false;

  void Amax(const ConstTensorView& in, std::byte* amax, const Execution& execution) const override {
    Record(execution, "amax of {} to {}", Text(in), amax != nullptr);
  }
  void HadamardAmax(const ConstTensorView& in, std::uint32_t sign_mask, std::byte* amax,
                    const Execution& execution) const override {
    Record(execution, "hadamard_amax of {} with {:x} to {}", Text(in), sign_mask, amax != nullptr);
  }
  void HadamardTransform(const ConstTensorView& in, const TensorView& out, std::uint32_t sign_mask,
                         const Execution& execution) const override {
    Record(execution, "hadamard of {} with {:x} to {}", Text(in), sign_mask, Text(out));
  }
  void ColumnSums(const ConstTensorView& in, const TensorView& sums,
                  const Execution& execution) const override {
    Record(execution, "column_sums of {} to {}", Text(in), Text(sums));
  }
  void UpdateDelayedScale(const TensorView& amax_history, const TensorView& scale,
                          const DelayedScaleRule& rule, const ConstTensorView* reduced_amax,
                          const Execution& execution) const override {
    Record(execution, "update_delayed_scale of {} and {} to {} with {}", Text(amax_history),
           reduced_amax != nullptr ? Text(*reduced_amax) : "nothing", Text(scale), rule.fp8_max);
  }
  void Quantize(const ConstTensorView& in, const QuantizedView& out,
                const Execution& execution) const override {
    Record(execution, "quantize of {} to {}", Text(in), TextWithStrays(out));
  }
  void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                     std::optional<std::span<float>> workspace,
                     const Execution& execution) const override {
    Record(execution, "quantize_dbias of {} to {} and {}, workspace {}", Text(in),
           TextWithStrays(out), Text(dbias),
           workspace ? fmt::to_string(workspace->size()) : "none");
  }
  void GroupedQuantize(std::span<const ConstTensorView> ins, std::span<const QuantizedView> outs,
                       const Execution& execution) const override {
    std::string text;
    for (std::size_t g = 0; g < ins.size(); ++g)
      text += fmt::format(", {} to {}", Text(ins[g]), TextWithStrays(outs[g]));
    Record(execution, "grouped_quantize{}", text);
  }
  void Dequantize(const ConstQuantizedView& in, Direction direction, const TensorView& out,
                  const Execution& execution) const override {
    Record(execution, "dequantize of {} {} to {}", Text(in), Text(direction), Text(out));
  }
  void FakeQuantize(const ConstTensorView& in, const QuantSpec& spec, const TensorView& out,
                    const Execution& execution) const override {
    Record(execution, "fake_quantize of {} by {} to {}", Text(in), PrintQuantSpec(spec), Text(out));
  }
  void Requantize(const ConstQuantizedView& in, Direction direction, const QuantizedView& out,
                  DType between, const Execution& execution) const override {
    Record(execution, "requantize of {} {} to {} through {}", Text(in), Text(direction),
           TextWithStrays(out), DTypeName(between));
  }
  void Swizzle(const ConstQuantizedView& in, const QuantizedView& out,
               const Execution& execution) const override {
    Record(execution, "swizzle of {} to {}", TextWithStrays(in), Text(out));
  }
  void BlockScalesToMxfp8(const ConstQuantizedView& in, Direction direction,
                          const TensorView& scales, const Execution& execution) const override {
    Record(execution, "block_scales_to_mxfp8 of {} {} to {}", Text(in), Text(direction),
           Text(scales));
  }
  void DeriveColumnwise(const ConstQuantizedView& in, const QuantizedView& out,
                        const Execution& execution) const override {
    Record(execution, "derive_columnwise of {} to {}", Text(in), Text(out));
  }
  void TransposeCodes(const ConstTensorView& in, const TensorView& out,
                      const Execution& execution) const override {
    Record(execution, "transpose_codes of {} to {}", Text(in), Text(out));
  }
  void Multiply(std::span<const Product> products, GemmMode mode,
                const Execution& execution) const override {
    std::string text;
    for (const Product& product : products) {
      text += fmt::format(", {} {} times {} {} to {}", Text(product.a), Text(product.a_direction),
                          Text(product.b), Text(product.b_direction), Text(product.out));
    }
    Record(execution, "multiply in mode {}{}", GemmModeName(mode), text);
  }

 private:
  template <class... Args>
  void Record(const Execution& execution, fmt::format_string<Args...> format,
              Args&&... args) const {
    if (fails) throw DeviceError("cuda: the device is gone");
    calls.push_back(fmt::format(format, std::forward<Args>(args)...));
    noop = execution.noop;
  }
};

constexpr const char* kBlocks = "fp8_block128x128_e4m3:columnwise=1";

class BackendTest : public testing::Test {
 protected:
  BackendTest() { RegisterBackend(kDevice, &backend_); }
  ~BackendTest() override { RegisterBackend(kDevice, nullptr); }

  /// Returns the text of the backend's call in `call`. Joins several, which are an error, by "and".
  std::string CallsOf(const std::function<void(const Execution&)>& call) {
    backend_.calls.clear();
    const auto* noop = reinterpret_cast<const float*>(memory_.Allocate(sizeof(float)));
    call({.noop = noop});
    EXPECT_EQ(backend_.noop, noop);
    return fmt::format("{}", fmt::join(backend_.calls, " and "));
  }
  /// Returns the message of a call that must not reach the backend.
  std::string Refusal(const std::function<void()>& call) {
    backend_.calls.clear();
    std::string message = MessageOf(call);
    EXPECT_TRUE(backend_.calls.empty()) << backend_.calls.front();
    return message;
  }

  DeviceMemory memory_;
  RecordingBackend backend_;
  TensorView in_ = memory_.Tensor(DType::kBFloat16, {128, 256});
  TensorView out_ = memory_.Tensor(DType::kBFloat16, {128, 256});
  TensorView amax_ = memory_.Tensor(DType::kFloat32, {1});
  TensorView sums_ = memory_.Tensor(DType::kFloat32, {256});
  TensorView dbias_ = memory_.Tensor(DType::kBFloat16, {256});
  QuantizedView quantized_ = memory_.Quantized("mxfp8_e4m3", {128, 256});
  QuantizedView blocks_ = memory_.Quantized(kBlocks, {128, 256});
};

TEST_F(BackendTest, MeasuringVerbsAreOneCallEach) {
  EXPECT_EQ(CallsOf([&](const Execution& e) { Amax(in_, amax_, e); }),
            "amax of bfloat16 128x256 to true");
  EXPECT_EQ(CallsOf([&](const Execution& e) { HadamardAmax(in_, amax_, 0x5, e); }),
            "hadamard_amax of bfloat16 128x256 with 5 to true");
  EXPECT_EQ(CallsOf([&](const Execution& e) { HadamardTransform(in_, out_, 0x5, e); }),
            "hadamard of bfloat16 128x256 with 5 to bfloat16 128x256");
  EXPECT_EQ(CallsOf([&](const Execution& e) { ColumnSums(in_, sums_, e); }),
            "column_sums of bfloat16 128x256 to float32 256");
  const TensorView history = memory_.Tensor(DType::kFloat32, {4, 256});
  const ConstTensorView reduced = memory_.Tensor(DType::kFloat32, {256});
  const DelayedScaleRule rule{.fp8_max = 448};
  EXPECT_EQ(
      CallsOf([&](const Execution& e) { UpdateDelayedScale(history, sums_, rule, nullptr, e); }),
      "update_delayed_scale of float32 4x256 and nothing to float32 256 with 448");
  EXPECT_EQ(
      CallsOf([&](const Execution& e) { UpdateDelayedScale(history, sums_, rule, &reduced, e); }),
      "update_delayed_scale of float32 4x256 and float32 256 to float32 256 with 448");
}

TEST_F(BackendTest, QuantizingVerbsAreOneCallEach) {
  EXPECT_EQ(CallsOf([&](const Execution& e) { Quantize(in_, quantized_, e); }),
            "quantize of bfloat16 128x256 to mxfp8_e4m3 128x256");
  for (const SchemeInfo& scheme : kSchemes) {  // some have buffers for a scale and amaxes
    const std::string spec = fmt::format("{}:columnwise=1", scheme.name);
    const QuantizedView both = memory_.Quantized(spec, {128, 256});
    EXPECT_EQ(CallsOf([&](const Execution& e) { Quantize(in_, both, e); }),
              fmt::format("quantize of bfloat16 128x256 to {} 128x256", spec));
  }
  EXPECT_EQ(CallsOf([&](const Execution& e) { QuantizeDbias(in_, quantized_, dbias_, e); }),
            "quantize_dbias of bfloat16 128x256 to mxfp8_e4m3 128x256 and bfloat16 256, workspace "
            "none");
  const std::span<float> workspace{reinterpret_cast<float*>(memory_.Allocate(64 * sizeof(float))),
                                   64};
  EXPECT_EQ(
      CallsOf([&](const Execution& e) { QuantizeDbias(in_, quantized_, dbias_, workspace, e); }),
      "quantize_dbias of bfloat16 128x256 to mxfp8_e4m3 128x256 and bfloat16 256, workspace 64");
  EXPECT_EQ(CallsOf([&](const Execution& e) {
              FakeQuantize(in_, ParseQuantSpec("nvfp4"), in_, e);  // in place
            }),
            "fake_quantize of bfloat16 128x256 by nvfp4 to bfloat16 128x256");
  TensorView strided = in_;  // the same items, with explicit strides
  strided.strides = {512, 2};
  EXPECT_EQ(
      CallsOf([&](const Execution& e) { FakeQuantize(in_, ParseQuantSpec("nvfp4"), strided, e); }),
      "fake_quantize of bfloat16 128x256 by nvfp4 to bfloat16 128x256");
}

TEST_F(BackendTest, GroupsAreOneCallWithTheirOffsets) {
  const auto group = [&](std::int64_t rows) {
    return memory_.Quantized("nvfp4:offset=7,seed=3,stochastic_rounding=1", {rows, 256});
  };
  const std::vector<ConstTensorView> ins{in_, out_};
  const std::vector<QuantizedView> plain{quantized_, blocks_};
  EXPECT_EQ(CallsOf([&](const Execution& e) { GroupedQuantize(ins, plain, e); }),
            "grouped_quantize, bfloat16 128x256 to mxfp8_e4m3 128x256, bfloat16 128x256 to "
            "fp8_block128x128_e4m3:columnwise=1 128x256");
  const std::vector<QuantizedView> full{group(96), group(32)};
  EXPECT_EQ(CallsOf([&](const Execution& e) {
              GroupedQuantize(in_, std::vector<std::int64_t>{96, 32}, full, e);
            }),
            "grouped_quantize, bfloat16 96x256 to nvfp4:offset=7,seed=3,stochastic_rounding=1 "
            "96x256, bfloat16 32x256 to nvfp4:offset=8,seed=3,stochastic_rounding=1 32x256");
}

TEST_F(BackendTest, VerbsOfQuantizedTensorsAreOneCallEach) {
  EXPECT_EQ(CallsOf([&](const Execution& e) { Dequantize(quantized_, out_, e); }),
            "dequantize of mxfp8_e4m3 128x256 rowwise to bfloat16 128x256");
  const QuantizedView columns = memory_.Quantized("nvfp4:columnwise=1,rowwise=0", {128, 256});
  EXPECT_EQ(CallsOf([&](const Execution& e) { Dequantize(columns, out_, e); }),
            "dequantize of nvfp4:columnwise=1,rowwise=0 128x256 columnwise to bfloat16 128x256");
  EXPECT_EQ(
      CallsOf([&](const Execution& e) { Requantize(columns, quantized_, DType::kBFloat16, e); }),
      "requantize of nvfp4:columnwise=1,rowwise=0 128x256 columnwise to mxfp8_e4m3 128x256 "
      "through bfloat16");
  const QuantizedView swizzled = memory_.Quantized("mxfp8_e4m3:swizzled=1", {128, 256});
  EXPECT_EQ(CallsOf([&](const Execution& e) { Swizzle(quantized_, swizzled, e); }),
            "swizzle of mxfp8_e4m3 128x256 to mxfp8_e4m3:swizzled=1 128x256");
  EXPECT_EQ(CallsOf([&](const Execution& e) { Unswizzle(swizzled, quantized_, e); }),
            "swizzle of mxfp8_e4m3:swizzled=1 128x256 to mxfp8_e4m3 128x256");
  const TensorView scales =
      memory_.Tensor(DType::kUInt8, Mxfp8ScalesShape(blocks_, Direction::kRowwise));
  EXPECT_EQ(CallsOf([&](const Execution& e) {
              BlockScalesToMxfp8(blocks_, Direction::kRowwise, scales, e);
            }),
            "block_scales_to_mxfp8 of fp8_block128x128_e4m3:columnwise=1 128x256 rowwise to uint8 "
            "128x8");
  EXPECT_EQ(CallsOf([&](const Execution& e) { DeriveColumnwise(blocks_, blocks_, e); }),
            "derive_columnwise of fp8_block128x128_e4m3:columnwise=1 128x256 to "
            "fp8_block128x128_e4m3:columnwise=1 128x256");
  EXPECT_EQ(CallsOf([&](const Execution& e) {
              TransposeCodes(memory_.Tensor(DType::kUInt8, {3, 5}),
                             memory_.Tensor(DType::kUInt8, {5, 3}), e);
            }),
            "transpose_codes of uint8 3x5 to uint8 5x3");
}

TEST_F(BackendTest, BuffersThatTheSpecDoesNotAskForDoNotReachTheBackend) {
  QuantizedView out = memory_.Quantized("mxfp8_e4m3:columnwise=1", {128, 256});
  out.spec.columnwise = false;
  out[Role::kScale] = out[Role::kAmaxRowwise] = out[Role::kAmaxColumnwise] = amax_;
  constexpr const char* kCall = "bfloat16 128x256 to mxfp8_e4m3 128x256";
  EXPECT_EQ(CallsOf([&](const Execution& e) { Quantize(in_, out, e); }),
            fmt::format("quantize of {}", kCall));
  EXPECT_EQ(CallsOf([&](const Execution& e) { QuantizeDbias(in_, out, dbias_, e); }),
            fmt::format("quantize_dbias of {} and bfloat16 256, workspace none", kCall));
  EXPECT_EQ(CallsOf([&](const Execution& e) {
              GroupedQuantize(std::vector<ConstTensorView>{in_}, std::vector{out}, e);
            }),
            fmt::format("grouped_quantize, {}", kCall));
  EXPECT_EQ(CallsOf([&](const Execution& e) { Requantize(blocks_, out, DType::kBFloat16, e); }),
            "requantize of fp8_block128x128_e4m3:columnwise=1 128x256 rowwise to mxfp8_e4m3 "
            "128x256 through bfloat16");
  QuantizedView in = quantized_;
  in[Role::kAmaxRowwise] = amax_;
  const QuantizedView swizzled = memory_.Quantized("mxfp8_e4m3:swizzled=1", {128, 256});
  EXPECT_EQ(CallsOf([&](const Execution& e) { Swizzle(in, swizzled, e); }),
            "swizzle of mxfp8_e4m3 128x256 to mxfp8_e4m3:swizzled=1 128x256");
}

TEST_F(BackendTest, ProductsAreOneCall) {
  const QuantizedView a = memory_.Quantized("fp8_e4m3:columnwise=1", {3, 64});
  const QuantizedView b = memory_.Quantized("fp8_e4m3:columnwise=1", {5, 64});
  const std::vector<TensorView> outs{memory_.Tensor(DType::kFloat32, {3, 5}),
                                     memory_.Tensor(DType::kBFloat16, {5, 3})};
  const TensorView bias = memory_.Tensor(DType::kFloat32, {5});
  EXPECT_EQ(CallsOf([&](const Execution& e) {
              Qgemm(a, b, outs[0], {.bias = bias, .mode = GemmMode::kFast}, e);
            }),
            "multiply in mode fast, fp8_e4m3:columnwise=1 3x64 rowwise times "
            "fp8_e4m3:columnwise=1 5x64 rowwise to float32 3x5");
  const std::vector<ConstQuantizedView> left{a, b}, right{b, a};
  EXPECT_EQ(CallsOf([&](const Execution& e) {
              GroupedQgemm(left, right, outs, {.mode = GemmMode::kReproducible}, e);
            }),
            "multiply in mode reproducible, fp8_e4m3:columnwise=1 3x64 rowwise times "
            "fp8_e4m3:columnwise=1 5x64 rowwise to float32 3x5, fp8_e4m3:columnwise=1 5x64 "
            "rowwise times fp8_e4m3:columnwise=1 3x64 rowwise to bfloat16 5x3");
}

TEST_F(BackendTest, WrongArgumentsDoNotReachTheBackend) {
  TensorView codes = in_;
  codes.dtype = DType::kUInt8;
  const TensorView narrow = memory_.Tensor(DType::kBFloat16, {128, 255});
  TensorView inside = quantized_[Role::kRowwiseData];
  inside.dtype = DType::kBFloat16;
  inside.shape = {128, 256};
  QuantizedView missing = quantized_, wrong = quantized_;
  missing[Role::kRowwiseScaleInv].data = nullptr;
  wrong[Role::kRowwiseScaleInv].shape = {1};
  EXPECT_EQ(Refusal([&] { Amax(codes, amax_); }),
            "amax: the input must be float32, float16 or bfloat16, got uint8");
  EXPECT_EQ(Refusal([&] { Amax(in_, sums_); }),
            "amax: the output must be contiguous float32 of shape 1, got float32 of shape 256");
  EXPECT_EQ(Refusal([&] { HadamardTransform(in_, in_); }),
            "hadamard_transform: the output must not overlap the input");
  EXPECT_EQ(Refusal([&] { HadamardTransform(in_, out_, 0x10000); }),
            "hadamard_transform: sign_mask must fit in 16 bits, got 65536");
  EXPECT_EQ(Refusal([&] { HadamardAmax(in_, amax_, 0x10000); }),
            "hadamard_transform: sign_mask must fit in 16 bits, got 65536");
  EXPECT_EQ(Refusal([&] { ColumnSums(in_, dbias_); }),
            "column_sums: the output must be contiguous float32 of shape 256, got bfloat16 of "
            "shape 256");
  EXPECT_EQ(Refusal([&] { Quantize(narrow, quantized_); }),
            "quantize: the output must have shape 128x255 as the input has, got 128x256");
  EXPECT_EQ(Refusal([&] { Quantize(in_, missing); }), "quantize: rowwise_scale_inv is missing");
  EXPECT_EQ(Refusal([&] { Quantize(inside, quantized_); }),
            "quantize: rowwise_data must not overlap the input");
  EXPECT_EQ(Refusal([&] { QuantizeDbias(in_, quantized_, sums_); }),
            "quantize_dbias: dbias must be contiguous bfloat16 of shape 256, got float32 of shape "
            "256");
  EXPECT_EQ(Refusal([&] { Dequantize(quantized_, inside); }),
            "dequantize: the output must not overlap rowwise_data");
  EXPECT_EQ(Refusal([&] { Dequantize(wrong, out_); }),
            "dequantize: rowwise_scale_inv must have shape 128x8, got 1");
  QuantizedView nothing = quantized_;
  nothing[Role::kRowwiseData] = nothing[Role::kRowwiseScaleInv] = {};
  EXPECT_EQ(Refusal([&] { Dequantize(nothing, out_); }),
            "dequantize: mxfp8_e4m3 needs data and scale_inv of one direction, got neither rowwise "
            "nor columnwise");
  EXPECT_EQ(Refusal([&] { Dequantize(quantized_, narrow); }),
            "dequantize: the output must have shape 128x256, got 128x255");
  TensorView apart = out_;
  apart.strides = {1024, 4};
  EXPECT_EQ(Refusal([&] { Dequantize(quantized_, apart); }),
            "dequantize: the output must have adjacent items in its last dimension, got a stride "
            "of 4 bytes");
  for (const std::ptrdiff_t stride : {0, 510, -510}) {
    apart.strides = {stride, 2};
    EXPECT_EQ(Refusal([&] { Dequantize(quantized_, apart); }),
              fmt::format("dequantize: the output must have rows that do not overlap, got rows of "
                          "512 bytes and a stride of {}",
                          stride));
  }
  // Rows that coincide or overlap, although no stride is shorter than a row.
  const QuantizedView folded = memory_.Quantized("mxfp8_e4m3", {2, 2, 64});
  for (const std::ptrdiff_t stride : {128, 192, -192}) {
    const TensorView twice{
        out_.data + 256, DType::kBFloat16, {2, 2, 64}, {stride, 128, 2}, kDevice};
    EXPECT_EQ(Refusal([&] { Dequantize(folded, twice); }),
              fmt::format("dequantize: the output must have rows that do not overlap, got rows of "
                          "{} bytes and a stride of {}",
                          256, stride));
  }
  constexpr std::ptrdiff_t kFurthest = std::numeric_limits<std::ptrdiff_t>::max();
  for (const std::ptrdiff_t stride : {kFurthest, kFurthest / 127, -kFurthest - 1}) {
    apart.strides = {stride, 2};
    EXPECT_EQ(Refusal([&] { Dequantize(quantized_, apart); }),
              fmt::format("dequantize: the output must lie within memory, got a stride of {} bytes",
                          stride));
  }
  const QuantSpec spec = ParseQuantSpec("nvfp4");
  EXPECT_EQ(Refusal([&] { FakeQuantize(in_, spec, narrow); }),
            "fake_quantize: the output must have shape 128x256, got 128x255");
  TensorView shifted = in_;
  shifted.data += 2;
  EXPECT_EQ(Refusal([&] { FakeQuantize(in_, spec, shifted); }),
            "fake_quantize: the output must be the input or not overlap it");
  TensorView flat = quantized_[Role::kRowwiseData];
  flat.shape = {std::int64_t{128} * 256};
  EXPECT_EQ(Refusal([&] { TransposeCodes(flat, flat); }),
            "transpose_codes: the input must have two dimensions, got shape 32768");
  EXPECT_EQ(Refusal([&] { FakeQuantize(codes, spec, out_); }),
            "fake_quantize: the input must be float32, float16 or bfloat16, got uint8");
  EXPECT_EQ(Refusal([&] { Requantize(quantized_, quantized_); }),
            "requantize: rowwise_data of the output must not overlap rowwise_data");
  EXPECT_EQ(Refusal([&] { Requantize(quantized_, blocks_, DType::kUInt8); }),
            "requantize: the type in between must be float32, float16 or bfloat16, got uint8");
  EXPECT_EQ(Refusal([&] { Swizzle(blocks_, blocks_); }),
            "swizzle: the scheme must have swizzled scales, got fp8_block128x128_e4m3");
  EXPECT_EQ(Refusal([&] { DeriveColumnwise(quantized_, quantized_); }),
            "derive_columnwise: the scheme must have one scale, or square tiles and transposed "
            "columnwise codes, got mxfp8_e4m3");
  EXPECT_EQ(Refusal([&] { Qgemm(quantized_, quantized_, out_); }),
            "qgemm: out must have shape 128x128, got 128x256");
  const std::vector<ConstTensorView> ins{in_, in_};
  const std::vector<QuantizedView> outs{quantized_, quantized_};
  EXPECT_EQ(Refusal([&] { GroupedQuantize(ins, outs); }),
            "grouped_quantize: buffers of group 0 must not overlap buffers of group 1");
}

TEST_F(BackendTest, AGroupOfTheWrongTypeIsNamed) {
  TensorView codes = in_;
  codes.dtype = DType::kUInt8;
  const std::vector<ConstTensorView> ins{in_, codes};
  const std::vector<QuantizedView> outs{quantized_, quantized_};
  EXPECT_EQ(Refusal([&] { GroupedQuantize(ins, outs); }),
            "grouped_quantize: group 1 must be float32, float16 or bfloat16, got uint8");
}

TEST_F(BackendTest, SchemesOutsideTheRegistryDoNotReachTheBackend) {
  const SchemeInfo copy = FindScheme("mxfp8_e4m3");
  for (const SchemeInfo* scheme : {static_cast<const SchemeInfo*>(nullptr), &copy}) {
    const std::string message =
        fmt::format("spec: scheme must point to an element of kSchemes, got {}",
                    scheme == nullptr ? "null" : "another address");
    QuantizedView wrong = quantized_;
    wrong.spec.scheme = scheme;
    const std::vector<ConstTensorView> ins{in_};
    const std::vector<QuantizedView> outs{wrong};
    const auto refusal = [&](const std::function<void()>& call) {
      EXPECT_EQ(Refusal(call), message);
    };
    refusal([&] { Quantize(in_, wrong); });
    refusal([&] { QuantizeDbias(in_, wrong, dbias_); });
    refusal([&] { GroupedQuantize(ins, outs); });
    refusal([&] { GroupedQuantize(in_, std::vector<std::int64_t>{128}, outs); });
    refusal([&] { FakeQuantize(in_, wrong.spec, out_); });
    refusal([&] { Dequantize(wrong, out_); });
    refusal([&] { Requantize(wrong, blocks_); });
    refusal([&] { Requantize(blocks_, wrong); });
    refusal([&] { Swizzle(wrong, quantized_); });
    refusal([&] { Swizzle(quantized_, wrong); });
    refusal([&] { Unswizzle(wrong, quantized_); });
    refusal([&] { DeriveColumnwise(wrong, blocks_); });
    refusal([&] { DeriveColumnwise(blocks_, wrong); });
    refusal([&] { Mxfp8ScalesShape(wrong, Direction::kRowwise); });
    refusal([&] { BlockScalesToMxfp8(wrong, Direction::kRowwise, amax_); });
    refusal([&] { Qgemm(wrong, quantized_, out_); });
    refusal([&] { Qgemm(quantized_, wrong, out_); });
    refusal([&] { PlanQgemmExpansion(wrong, quantized_, GemmLayout::kTN); });
    wrong[Role::kRowwiseData] = {};
    refusal([&] { Dequantize(wrong, out_); });
  }
}

TEST_F(BackendTest, SwizzlingNeedsMemoryOfItsOwnForScalesAndAmaxes) {
  const QuantizedView from = memory_.Quantized("nvfp4", {128, 256});
  QuantizedView to = memory_.Quantized("nvfp4:swizzled=1", {128, 256});
  to[Role::kRowwiseData] = from[Role::kRowwiseData];  // both may share the memory of the codes
  EXPECT_EQ(CallsOf([&](const Execution& e) { Swizzle(from, to, e); }),
            "swizzle of nvfp4 128x256 to nvfp4:swizzled=1 128x256");
  QuantizedView over = to, without = to;
  over[Role::kRowwiseScaleInv] = from[Role::kRowwiseScaleInv];
  without[Role::kAmaxRowwise] = {};
  EXPECT_EQ(Refusal([&] { Swizzle(from, over); }),
            "swizzle: rowwise_scale_inv must not overlap rowwise_scale_inv of the input");
  EXPECT_EQ(Refusal([&] { Swizzle(from, without); }), "swizzle: amax_rowwise is missing");
}

TEST_F(BackendTest, TensorsOfTwoDevicesAreRefused) {
  std::vector<float> host(256);
  const TensorView on_host{reinterpret_cast<std::byte*>(host.data()), DType::kFloat32, {256}};
  EXPECT_EQ(Refusal([&] { ColumnSums(in_, on_host); }),
            "column_sums: all tensors must be in the memory of one device, got the input in cuda "
            "memory and the output in cpu memory");
  QuantizedView mixed = quantized_;
  mixed[Role::kRowwiseScaleInv].device = Device::kCpu;
  EXPECT_EQ(Refusal([&] { Quantize(in_, mixed); }),
            "quantize: all tensors must be in the memory of one device, got rowwise_data in cuda "
            "memory and rowwise_scale_inv in cpu memory");
  EXPECT_EQ(Refusal([&] {
              Qgemm(quantized_, mixed, memory_.Tensor(DType::kFloat32, {128, 128}));
            }),
            "qgemm: all tensors must be in the memory of one device, got out in cuda memory and "
            "rowwise_scale_inv of b in cpu memory");
}

TEST_F(BackendTest, ResultsOfTheHostNeedTensorsOfTheHost) {
  EXPECT_EQ(Refusal([&] { Amax(in_); }),
            "amax: all tensors must be in the memory of one device, got the input in cuda memory "
            "and the result in cpu memory");
  EXPECT_EQ(
      Refusal([&] { HadamardAmax(in_); }),
      "hadamard_transform: all tensors must be in the memory of one device, got the input in cuda "
      "memory and the result in cpu memory");
  EXPECT_EQ(Refusal([&] { PlanQgemmExpansion(quantized_, quantized_, GemmLayout::kTN); }),
            "qgemm: all tensors must be in the memory of one device, got rowwise_data of a in cuda "
            "memory and the plan in cpu memory");
}

TEST_F(BackendTest, ADeviceWithoutABackendIsRefused) {
  RegisterBackend(kDevice, nullptr);
  EXPECT_EQ(MessageOf([&] { Quantize(in_, quantized_); }),
            "quantize: rowwise_data must be in the memory of a device with a backend, got cuda "
            "memory");
  TensorView elsewhere = in_, sums = sums_;
  elsewhere.device = sums.device = static_cast<Device>(9);
  EXPECT_EQ(MessageOf([&] { ColumnSums(elsewhere, sums); }),
            "column_sums: the input must be in the memory of a device with a backend, got device "
            "9 memory");
  EXPECT_THROW(ColumnSums(elsewhere, sums), Unsupported);
  EXPECT_EQ(MessageOf([&] { ThreadCount({.threads = -1}); }),
            "threads: must be 0 (choose) or a number of threads, got -1");
  TensorView strided = in_;
  strided.device = Device::kCpu;
  strided.strides = {4};
  EXPECT_EQ(MessageOf([&] { Amax(strided); }),
            "amax: the input must have one stride per dimension, got 1 for 2");
  EXPECT_EQ(MessageOf([&] { RegisterBackend(Device::kCpu, &backend_); }),
            "register_backend: the device must be a known one other than cpu, got cpu");
}

TEST_F(BackendTest, ErrorsOfADeviceReachTheCaller) {
  backend_.fails = true;
  EXPECT_THROW(Quantize(in_, quantized_), DeviceError);
  EXPECT_EQ(MessageOf([&] { Quantize(in_, quantized_); }), "cuda: the device is gone");
}

}  // namespace
}  // namespace narrowfloat
