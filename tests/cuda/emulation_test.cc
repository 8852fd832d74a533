// SPDX-License-Identifier: Apache-2.0
// Tests the emulation of CUDA: its results, and the errors that it reports.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/kernels/cuda/memory.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat::cuda {
namespace {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

template <class T>
class Array {
 public:
  explicit Array(std::size_t count) : count_(count), memory_(count * sizeof(T), nullptr) {}
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  std::vector<T> Read() const {
    std::vector<T> items(count_);
    Copy(items.data(), data(), count_ * sizeof(T), nullptr);
    Synchronize(nullptr);
    return items;
  }
  void Write(const std::vector<T>& items) const {
    Copy(data(), items.data(), count_ * sizeof(T), nullptr);
  }

 private:
  std::size_t count_;
  Memory memory_;
};

/// Runs a body in the normal order of threads, then in reverse.
template <class F>
void InBothOrders(F&& body) {
  for (const char* order : {"normal", "reverse"}) {
    SCOPED_TRACE(order);
    setenv("NF_EMULATION_ORDER", order, 1);
    body();
  }
  unsetenv("NF_EMULATION_ORDER");
}

__global__ void WriteIndices(unsigned* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned index = block * blockDim.x * blockDim.y * blockDim.z + thread;
  out[index] = index;
}

TEST(EmulationTest, EveryThreadRunsOnce) {
  InBothOrders([] {
    const Array<unsigned> out(std::size_t{2} * 3 * 4 * 5 * 7 * 2);
    Launch(WriteIndices, dim3(2, 3, 4), dim3(5, 7, 2), 0, nullptr, out.data());
    std::vector<unsigned> expected(std::size_t{2} * 3 * 4 * 5 * 7 * 2);
    std::iota(expected.begin(), expected.end(), 0u);
    EXPECT_EQ(out.Read(), expected);
  });
}

__global__ void ReverseBlock(const float* in, float* out) {
  __shared__ float items[1024];
  auto* dynamic = reinterpret_cast<float*>(DynamicShared());
  for (int turn = 0; turn < 3; ++turn) {
    items[threadIdx.x] =
        turn == 0 ? in[blockIdx.x * blockDim.x + threadIdx.x] : dynamic[threadIdx.x];
    __syncthreads();
    dynamic[threadIdx.x] = items[blockDim.x - 1 - threadIdx.x];
    __syncthreads();
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = dynamic[threadIdx.x];
}

TEST(EmulationTest, SharedMemoryAndBarriers) {
  InBothOrders([] {
    for (const unsigned threads : {1u, 31u, 33u, 256u, 1024u}) {
      const Array<float> in(std::size_t{3} * threads), out(std::size_t{3} * threads);
      std::vector<float> items(std::size_t{3} * threads), expected;
      std::iota(items.begin(), items.end(), 1.0f);
      for (unsigned i = 0; i < 3; ++i) {
        for (unsigned j = 0; j < threads; ++j)
          expected.push_back(items[i * threads + threads - 1 - j]);
      }
      in.Write(items);
      Launch(ReverseBlock, 3, threads, threads * sizeof(float), nullptr, in.data(), out.data());
      EXPECT_EQ(out.Read(), expected);
    }
  });
}

__global__ void WithoutBarrier(unsigned* out) {
  __shared__ unsigned items[64];
  items[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = items[(threadIdx.x + 32) % 64];
}

TEST(EmulationTest, AMissingBarrierShowsInOneOrder) {
  std::vector<std::vector<unsigned>> results;
  InBothOrders([&] {
    const Array<unsigned> out(64);
    Launch(WithoutBarrier, 1, 64, 0, nullptr, out.data());
    results.push_back(out.Read());
  });
  EXPECT_NE(results[0], results[1]);
}

__global__ void Shuffles(std::uint64_t* out) {
  const unsigned lane = threadIdx.x;
  std::uint64_t* own = out + std::size_t{lane} * 12;
  own[0] = __shfl_sync(kAllLanes, lane * 3, 5);
  own[1] = __shfl_xor_sync(kAllLanes, static_cast<std::uint64_t>(lane) << 40, 16);
  own[2] = static_cast<std::uint64_t>(__shfl_up_sync(kAllLanes, static_cast<float>(lane), 2));
  own[3] = static_cast<std::uint64_t>(__shfl_down_sync(kAllLanes, static_cast<double>(lane), 30));
  own[4] = __ballot_sync(kAllLanes, lane % 3 == 0);
  own[5] = static_cast<unsigned>(__any_sync(kAllLanes, lane == 40));
  own[6] = __reduce_max_sync(kAllLanes, lane ^ 21u);
  own[7] = __shfl_sync(kAllLanes, lane, 1, 8);
  unsigned sum = lane;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  own[8] = sum;
  // The halves of the warp take different branches.
  if (lane < 16) {
    own[9] = __reduce_add_sync(0x0000FFFFu, 1u);
    own[9] += __reduce_add_sync(0x0000FFFFu, lane);
  } else {
    own[9] = __reduce_max_sync(0xFFFF0000u, lane);
  }
  __syncwarp();
  own[10] = static_cast<unsigned>(__all_sync(kAllLanes, lane < 32));
  own[11] = static_cast<unsigned>(__all_sync(kAllLanes, lane < 31));
}

TEST(EmulationTest, WarpOperations) {
  InBothOrders([] {
    const Array<std::uint64_t> out(std::size_t{32} * 12);
    Launch(Shuffles, 1, 32, 0, nullptr, out.data());
    const std::vector<std::uint64_t> got = out.Read();
    for (std::uint64_t lane = 0; lane < 32; ++lane) {
      const std::vector<std::uint64_t> own(
          got.begin() + static_cast<std::ptrdiff_t>(lane) * 12,
          got.begin() + static_cast<std::ptrdiff_t>(lane + 1) * 12);
      const std::vector<std::uint64_t> expected{15,
                                                (lane ^ 16) << 40,
                                                lane < 2 ? lane : lane - 2,
                                                lane < 2 ? lane + 30 : lane,
                                                0x49249249u,
                                                0,
                                                31,
                                                lane / 8 * 8 + 1,
                                                496,
                                                lane < 16 ? 136u : 31u,
                                                1,
                                                0};
      EXPECT_EQ(own, expected) << lane;
    }
  });
}

__global__ void SomeReturn(unsigned* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  const unsigned lanes = __ballot_sync(kAllLanes, 1);
  __syncthreads();
  atomicAdd(out, 1u);
  atomicMax(out + 1, threadIdx.x);
  atomicOr(out + 2, lanes);
  atomicExch(out + 3, 7u);
}

TEST(EmulationTest, ThreadsThatReturnedAreNotWaitedFor) {
  InBothOrders([] {
    const Array<unsigned> out(4);
    out.Write({0, 0, 0, 0});
    Launch(SomeReturn, 1, 70, 0, nullptr, out.data());
    EXPECT_EQ(out.Read(), (std::vector<unsigned>{40, 39, kAllLanes, 7}));
  });
}

__global__ void DivideByThree(float x, float* out) {
  *out = x / 3.0f;
}

TEST(EmulationTest, TheHostsRoundingDoesNotMatter) {
  const Array<float> out(1);
  std::fesetround(FE_UPWARD);
  Launch(DivideByThree, 1, 1, 0, nullptr, 1.0f, out.data());
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(out.Read()[0], 1.0f / 3.0f);
}

__global__ void ReadShared(unsigned* out) {
  std::memcpy(out, DynamicShared() + 12, sizeof *out);
}

__global__ void LargerOf(float a, float b, unsigned* out) {
  *out = __float_as_uint(fmaxf(a, b));
}

TEST(EmulationTest, TheLargerOneIsNoNan) {
  const Array<unsigned> out(1);
  const auto larger_of = [&](unsigned a, unsigned b) {
    Launch(LargerOf, 1, 1, 0, nullptr, __uint_as_float(a), __uint_as_float(b), out.data());
    return out.Read()[0];
  };
  for (const unsigned nan : {0x7FC00000u, 0xFF800001u}) {
    EXPECT_EQ(larger_of(nan, 0x3F800000u), 0x3F800000u);
    EXPECT_EQ(larger_of(0x3F800000u, nan), 0x3F800000u);
    EXPECT_EQ(larger_of(nan, nan), 0x7FFFFFFFu);
  }
  EXPECT_EQ(larger_of(0x80000000u, 0), 0u);
  EXPECT_EQ(larger_of(0, 0x80000000u), 0u);
  EXPECT_EQ(larger_of(0x40000000u, 0x7F800000u), 0x7F800000u);
}

TEST(EmulationTest, FreshMemoryIsPoisoned) {
  const Array<unsigned> out(2);
  EXPECT_EQ(out.Read()[1], 0xA5A5A5A5u);
  Launch(ReadShared, 1, 1, 16, nullptr, out.data());
  EXPECT_EQ(out.Read()[0], 0xA5A5A5A5u);
}

TEST(EmulationTest, MemoryIsFreed) {
  const std::size_t before = emulation::LiveAllocations();
  {
    const Memory memory(100, nullptr), nothing(0, nullptr);
    EXPECT_EQ(emulation::LiveAllocations(), before + 1);
    EXPECT_EQ(nothing.data(), nullptr);
  }
  EXPECT_EQ(emulation::LiveAllocations(), before);
}

TEST(EmulationTest, ErrorsBecomeExceptions) {
  const auto wait = [] { Synchronize(nullptr); };
  emulation::FailNextCall();
  EXPECT_EQ(MessageOf<DeviceError>(wait),
            "cuda: waiting for a stream failed: unknown error (cudaErrorUnknown)");
  EXPECT_EQ(MessageOf<DeviceError>(wait), "no error");
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  const auto launch = [] { Launch(WriteIndices, 1, 1025, 0, nullptr, nullptr); };
  EXPECT_EQ(MessageOf<DeviceError>(launch),
            "cuda: launching a kernel failed: invalid configuration argument "
            "(cudaErrorInvalidConfiguration)");
  EXPECT_EQ(
      MessageOf<DeviceError>([] { Launch(WriteIndices, dim3(3, 0), 1025, 0, nullptr, nullptr); }),
      "no error");
  const auto copy = [] {
    std::byte bytes[11];
    const Memory memory(10, nullptr);
    Copy(memory.data(), bytes, 11, nullptr);
  };
  EXPECT_EQ(MessageOf<DeviceError>(copy),
            "cuda: copying memory failed: invalid argument (cudaErrorInvalidValue)");
}

TEST(EmulationTest, AMachineWithoutDevices) {
  EXPECT_EQ(MessageOf<DeviceError>(RequireDevice), "no error");
  emulation::SetDeviceCount(0);
  EXPECT_EQ(MessageOf<DeviceError>(RequireDevice),
            "cuda: finding a device failed: no CUDA-capable device is detected "
            "(cudaErrorNoDevice)");
  emulation::SetDeviceCount(1);
}

__global__ void HalfWaits() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncwarp();
    if (threadIdx.x != 40) __syncwarp();
  }
}

__global__ void WaitApart() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

__global__ void WrongMask() {
  __syncwarp(1);
}

__global__ void WrongOperation() {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    __ballot_sync(kAllLanes, 1);
  }
}

__global__ void WriteAt(std::byte* data, std::ptrdiff_t at) {
#if defined(__SANITIZE_ADDRESS__)
  // Hides the write from ASan, so that the guards must find it.
  asm volatile("movb $1, (%0)" : : "r"(data + at) : "memory");
#else
  data[at] = std::byte{1};
#endif
}

__global__ void WriteShared(std::ptrdiff_t at) {
  WriteAt(DynamicShared(), at);
}

TEST(EmulationDeathTest, SaysWhatIsWrong) {
  Launch(HalfWaits, 1, 64, 0, nullptr);  // barriers do not wait for threads that returned
  EXPECT_DEATH(Launch(WaitApart, 1, 6, 0, nullptr),
               "deadlock in block \\(0, 0, 0\\): of 6 threads, 3 wait at __syncthreads, 3 at warp "
               "operations, 0 have returned");
  EXPECT_DEATH(Launch(WrongMask, 1, 2, 0, nullptr), "lane 1 calls a warp operation with the mask");
  EXPECT_DEATH(Launch(WrongOperation, 1, 32, 0, nullptr), "meet at different operations");
  EXPECT_DEATH(__syncthreads(), "__syncthreads is called outside a kernel");
}

__global__ void Await(unsigned threads) {
  if (threadIdx.x < threads) AwaitPrevious();
}

TEST(EmulationDeathTest, EveryThreadOfAnEarlyKernelWaits) {
  Launch<Start::kEarly>(Await, 2, 40, 0, nullptr, 40);
  Launch(Await, 2, 40, 0, nullptr, 0);
  EXPECT_DEATH(Launch<Start::kEarly>(Await, 2, 40, 0, nullptr, 39),
               "AwaitPrevious was called by 78 of 80 threads of a kernel that starts early");
  EXPECT_DEATH(Launch(Await, 2, 40, 0, nullptr, 1), "by 2 of 80 threads");
}

TEST(EmulationDeathTest, FindsWritesBesideMemory) {
#if defined(__x86_64__) || !defined(__SANITIZE_ADDRESS__)
  const Memory memory(10, nullptr);
  Launch(WriteAt, 1, 1, 0, nullptr, memory.data(), 9);
  EXPECT_DEATH(Launch(WriteAt, 1, 1, 0, nullptr, memory.data(), 10),
               "byte 10 of an allocation of 10 bytes was written to");
  EXPECT_DEATH(Launch(WriteAt, 1, 1, 0, nullptr, memory.data(), -1),
               "byte -1 of an allocation of 10 bytes was written to");
  EXPECT_DEATH(Launch(WriteShared, 1, 1, 48, nullptr, 48),
               "byte 48 of 48 bytes of shared memory was written to");
#endif
}

TEST(EmulationDeathTest, TheHostDoesNotReachDeviceMemory) {
  const Memory memory(10, nullptr);
  EXPECT_DEATH(memory.data()[0] = std::byte{1}, "");
}

}  // namespace
}  // namespace narrowfloat::cuda
