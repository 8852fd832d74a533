// SPDX-License-Identifier: Apache-2.0
// Times verbs on a CUDA device, beside copies of as many bytes within device memory, which read a
// half and write a half. Usage: cuda_bench [rows cols [prefix of specs]].
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <cstdio>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "narrowfloat/kernels/cuda/memory.h"
#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"

namespace narrowfloat {
namespace {

constexpr int kCalls = 20, kRounds = 5;

/// Returns the least time of a call, in microseconds, over rounds of calls in one stream.
double Time(const std::function<void()>& call) {
  call();
  cuda::Synchronize(nullptr);
  double least = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    cuda::Synchronize(nullptr);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count() / kCalls);
  }
  return least;
}

double TimeCopy(std::size_t bytes) {
  const cuda::Memory from(bytes / 2, nullptr), to(bytes / 2, nullptr);
  return Time([&] { cuda::Copy(to.data(), from.data(), bytes / 2, nullptr); });
}

void Print(const std::string& what, double time, std::size_t bytes) {
  const double copy = TimeCopy(bytes);
  fmt::print("{:64} {:8.1f} us {:7.0f} GB/s {:5.0f} %\n", what, time,
             static_cast<double>(bytes) / time / 1e3, 100.0 * copy / time);
  std::fflush(stdout);
}

class Bench {
 public:
  /// Times specs that begin with `filter`.
  Bench(std::int64_t rows, std::int64_t cols, std::string filter)
      : filter_(std::move(filter)),
        shape_{rows, cols},
        items_(static_cast<std::size_t>(rows * cols)),
        in_(items_ * 2, nullptr) {
    std::vector<std::uint16_t> host(items_);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::array<std::uint16_t, 65536> some{};
    for (auto& item : some)
      item = static_cast<std::uint16_t>(Encode<BFloat16, Overflow::kInfinity>(normal(random)));
    for (auto& item : host) item = some[random() % some.size()];
    cuda::Copy(in_.data(), host.data(), items_ * 2, nullptr);
    cuda::Synchronize(nullptr);
  }

  ConstTensorView In() const { return {in_.data(), DType::kBFloat16, shape_, {}, Device::kCuda}; }

  /// Times a spec both ways. `reads` is how often its quantization reads the input.
  void Spec(const std::string& text, int reads) {
    if (!text.starts_with(filter_)) return;
    const QuantSpec spec = ParseQuantSpec(text);
    std::vector<cuda::Memory*> owned;
    std::size_t bytes = 0;
    const auto view = BindBuffers<QuantizedView>(
        spec, shape_,
        [&](const BufferPlan& buffer) {
          const std::size_t size = BufferBytes(buffer);
          if (buffer.storage == buffer.role) bytes += size;
          return owned.emplace_back(new cuda::Memory(std::max<std::size_t>(size, 16), nullptr))
              ->data();
        },
        Device::kCuda);
    const std::size_t in_bytes = items_ * 2;
    Print(text, Time([&] { Quantize(In(), view); }),
          in_bytes * static_cast<std::size_t>(reads) + bytes);
    if (spec.rowwise != spec.columnwise) {
      const cuda::Memory values(in_bytes, nullptr);
      const TensorView out{values.data(), DType::kBFloat16, shape_, {}, Device::kCuda};
      Print("  dequantized", Time([&] { Dequantize(view, out); }), in_bytes + bytes);
    }
    for (const cuda::Memory* memory : owned) delete memory;
  }

  /// Times FP8 of both directions with the sums of columns.
  void Dbias() {
    const QuantSpec spec = ParseQuantSpec("fp8_e4m3:columnwise=1,scale=4.0");
    const cuda::Memory codes(items_, nullptr), turned(items_, nullptr), numbers(64, nullptr);
    const auto view = BindBuffers<QuantizedView>(
        spec, shape_,
        [&](const BufferPlan& buffer) {
          if (buffer.role == Role::kRowwiseData) return codes.data();
          if (buffer.role == Role::kColumnwiseData) return turned.data();
          return numbers.data() + 8 * static_cast<std::size_t>(buffer.storage);
        },
        Device::kCuda);
    const cuda::Memory sums(static_cast<std::size_t>(shape_[1]) * 2, nullptr);
    const TensorView out{sums.data(), DType::kBFloat16, {shape_[1]}, {}, Device::kCuda};
    Print("fp8_e4m3:columnwise=1,scale=4.0 and column sums",
          Time([&] { QuantizeDbias(In(), view, out); }), items_ * 4);
  }

  void Amax() {
    const cuda::Memory amax(16, nullptr);
    const TensorView out{amax.data(), DType::kFloat32, {1}, {}, Device::kCuda};
    Print("amax", Time([&] { narrowfloat::Amax(In(), out); }), items_ * 2);
  }
  void Sums() {
    const cuda::Memory sums(static_cast<std::size_t>(shape_[1]) * 4, nullptr);
    const TensorView out{sums.data(), DType::kFloat32, {shape_[1]}, {}, Device::kCuda};
    Print("column sums", Time([&] { ColumnSums(In(), out); }), items_ * 2);
  }

 private:
  std::string filter_;
  Shape shape_;
  std::size_t items_;
  cuda::Memory in_;
};

void Run(std::int64_t rows, std::int64_t cols, const std::string& filter) {
  fmt::print("{}x{} bf16; the last column is the time of a copy of the bytes over the time\n", rows,
             cols);
  Bench bench(rows, cols, filter);
  if (filter.empty()) {
    bench.Amax();
    bench.Sums();
    bench.Dbias();
  }
  // Rows, columns, both.
  const auto specs = [&](const std::string& scheme, const std::string& option, int reads) {
    for (std::vector<std::string> options :
         {std::vector<std::string>{}, {"columnwise=1", "rowwise=0"}, {"columnwise=1"}}) {
      if (!option.empty()) options.push_back(option);
      std::ranges::sort(options);
      bench.Spec(options.empty() ? scheme : fmt::format("{}:{}", scheme, fmt::join(options, ",")),
                 reads);
    }
  };
  specs("fp8_e4m3", "scale=4.0", 1);
  specs("fp8_e4m3", "", 2);
  specs("mxfp8_e4m3", "", 1);
  specs("mxfp8_2d_e4m3", "", 1);
  specs("fp8_block1x128_e4m3", "", 1);
  specs("fp8_block128x128_e4m3", "", 1);
  specs("nvfp4", "amax=5.0", 1);
  specs("nvfp4", "", 2);
  specs("nvfp4_2d", "amax=5.0", 1);
  specs("mxfp4", "", 1);
  const std::string fixed = "amax=5.0,amax_columnwise=5.0,columnwise=1,", rows_only = "amax=5.0,";
  for (const std::string option : {"rht=1", "stochastic_rounding=1", "four_over_six=mae"})
    bench.Spec("nvfp4:" + fixed + option, 1);
  bench.Spec("nvfp4:" + fixed + "rht=1,stochastic_rounding=1", 1);
  for (const std::string option : {"stochastic_rounding=1", "four_over_six=mae"})
    bench.Spec("nvfp4:" + rows_only + option, 1);
  bench.Spec("nvfp4_2d:" + rows_only + "columnwise=1,four_over_six=mae", 1);
}

}  // namespace
}  // namespace narrowfloat

int main(int argc, char** argv) {
  const std::int64_t rows = argc > 2 ? std::atoll(argv[1]) : 16384;
  const std::int64_t cols = argc > 2 ? std::atoll(argv[2]) : 8192;
  narrowfloat::Run(rows, cols, argc > 3 ? argv[3] : "");
  return 0;
}
