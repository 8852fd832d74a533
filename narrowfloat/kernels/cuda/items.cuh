// SPDX-License-Identifier: Apache-2.0
// Items and codes in device code. Some conversions use the hardware instead of the reference in
// numerics/; tests compare them for all inputs.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/fast_codec.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/tensor/dtype.h"

namespace narrowfloat::cuda {

#if defined(__CUDA_ARCH__)
#define NF_DEVICE_ARCH __CUDA_ARCH__
#else
#define NF_DEVICE_ARCH 0
#endif

/// Makes nvcc compute an offset here. Otherwise nvcc computes it again before every use.
__device__ __forceinline__ void KeepOffset([[maybe_unused]] std::size_t& offset) {
#if NF_DEVICE_ARCH > 0
  asm volatile("" : "+l"(offset));
#endif
}

/// Returns the value of a 16-bit item. A NaN keeps its payload.
template <class T>
__device__ __forceinline__ float Widen(std::uint32_t code) {
  if constexpr (T::kBias == 127) {
    return std::bit_cast<float>(code << 16);
  } else {
#if NF_DEVICE_ARCH > 0
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<std::uint16_t>(code)));
    return value;
#else
    return Decode<T>(code);
#endif
  }
}

/// Rounds to a code of a 16-bit type: nearest-even, overflow to infinity, one NaN.
template <class T>
__device__ __forceinline__ std::uint32_t Narrow(float value) {
  if constexpr (T::kBias == 127) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    return value == value ? rounded : T::kNanCode;
  } else {
#if NF_DEVICE_ARCH > 0
    std::uint16_t code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
    return value == value ? code : T::kNanCode;
#else
    return Encode<T, Overflow::kInfinity>(value);
#endif
  }
}

/// Returns, in each half of a word of 16-bit items, the larger magnitude of `a` and `b`, with any
/// sign. Keeps NaN if kKeepsNan, else ignores it.
template <class T, bool kKeepsNan>
__device__ __forceinline__ std::uint32_t LargerMagnitudes(std::uint32_t a, std::uint32_t b) {
#if NF_DEVICE_ARCH >= 860
  std::uint32_t larger;
  if constexpr (T::kBias == 127 && kKeepsNan) {
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  } else if constexpr (T::kBias == 127) {
    asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  } else if constexpr (kKeepsNan) {
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  } else {
    asm("max.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  }
  return larger;
#else
  // The bits of magnitudes have the magnitudes' order; NaN is above infinity.
  const auto larger = [](std::uint32_t x, std::uint32_t y) {
    constexpr std::uint32_t kInfinity = T::kMaxCode + 1u;
    if (!kKeepsNan && x > kInfinity) x = 0;
    return y > x && (kKeepsNan || y <= kInfinity) ? y : x;
  };
  return larger(a & 0x7FFFu, b & 0x7FFFu) | larger(a >> 16 & 0x7FFFu, b >> 16 & 0x7FFFu) << 16;
#endif
}

/// Returns the largest magnitudes of the low and of the high items of kCount words.
template <class T, int kCount, bool kKeepsNan>
__device__ __forceinline__ std::uint32_t LargestMagnitudes(const std::uint32_t* words) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) largest = LargerMagnitudes<T, kKeepsNan>(largest, words[i]);
  return largest & 0x7FFF7FFFu;
}

/// The amax of some items, NaN ignored, and the largest bits of their magnitudes.
struct ItemsAmax {
  float value;
  std::uint32_t largest;

  /// Returns true if an item is NaN or infinite.
  __device__ __forceinline__ bool IsSpecial() const { return largest >= kFloatInfinity; }
};

/// Computes the amax of item(0) to item(kCount - 1).
template <int kCount, class Item>
__device__ __forceinline__ ItemsAmax FindFloatAmax(const Item& item) {
  float amax = 0.0f;
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(Magnitude(item(i)));
    amax = fmaxf(amax, std::bit_cast<float>(magnitude));
    largest = magnitude > largest ? magnitude : largest;
  }
  return {amax, largest};
}

/// Returns the 8-bit codes of two items, the first one in the low bits.
template <FloatFormat F>
__device__ __forceinline__ std::uint32_t EncodePair(float low, float high) {
  static_assert(kBits<F> == 8);
#if NF_DEVICE_ARCH >= 890
  return EncodePairByHardware<F>(low, high);
#else
  return Encode<F>(low) | Encode<F>(high) << 8;
#endif
}

/// Returns a 32-bit word of 8-bit codes of item(0) to item(3).
template <FloatFormat F, class Item>
__device__ __forceinline__ std::uint32_t EncodeWord(const Item& item) {
  static_assert(kBits<F> == 8);
  return EncodePair<F>(item(0), item(1)) | EncodePair<F>(item(2), item(3)) << 16;
}

/// Loads `count` bytes from any address to `words`; the other bytes become 0. Out of line, as is
/// StoreAnyBytes: inlined for every piece of a tile, they take most of a kernel's registers.
[[maybe_unused]] static __device__ NF_NOINLINE void LoadAnyBytes(const std::byte* from, int count,
                                                                 std::uint32_t* words,
                                                                 int word_count) {
  for (int w = 0; w < word_count; ++w) {
    std::uint32_t word = 0;
    for (int b = 0; b < 4; ++b) {
      if (w * 4 + b < count) word |= static_cast<std::uint32_t>(from[w * 4 + b]) << (8 * b);
    }
    words[w] = word;
  }
}
[[maybe_unused]] static __device__ NF_NOINLINE void StoreAnyBytes(std::byte* to, int count,
                                                                  const std::uint32_t* words) {
  for (int i = 0; i < count; ++i) to[i] = static_cast<std::byte>(words[i / 4] >> (i % 4 * 8));
}

/// Loads the first `count` of kBytes bytes, all at once if the address is aligned.
template <int kBytes>
__device__ __forceinline__ void LoadBytes(const std::byte* from, std::size_t count, bool aligned,
                                          std::uint32_t (&words)[kBytes / 4]) {
  if (aligned && count >= kBytes) {
    if constexpr (kBytes == 4) {
      words[0] = __ldg(reinterpret_cast<const unsigned*>(from));
    } else if constexpr (kBytes == 8) {
      const uint2 both = __ldg(reinterpret_cast<const uint2*>(from));
      words[0] = both.x;
      words[1] = both.y;
    } else {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(from) + i);
        words[i * 4] = four.x;
        words[i * 4 + 1] = four.y;
        words[i * 4 + 2] = four.z;
        words[i * 4 + 3] = four.w;
      }
    }
    return;
  }
  std::uint32_t loaded[kBytes / 4];
  LoadAnyBytes(from, static_cast<int>(count < kBytes ? count : kBytes), loaded, kBytes / 4);
#pragma unroll
  for (int i = 0; i < kBytes / 4; ++i) words[i] = loaded[i];
}

/// Stores the first `count` of kBytes bytes, all at once if the address is aligned.
template <int kBytes>
__device__ __forceinline__ void StoreBytes(std::byte* to, const std::uint32_t (&words)[kBytes / 4],
                                           std::size_t count, bool aligned) {
  if (aligned && count >= kBytes) {
    if constexpr (kBytes == 4) {
      *reinterpret_cast<std::uint32_t*>(to) = words[0];
    } else if constexpr (kBytes == 8) {
      *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    } else {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i)
        reinterpret_cast<uint4*>(to)[i] =
            make_uint4(words[i * 4], words[i * 4 + 1], words[i * 4 + 2], words[i * 4 + 3]);
    }
    return;
  }
  std::uint32_t stored[kBytes / 4];
#pragma unroll
  for (int i = 0; i < kBytes / 4; ++i) stored[i] = words[i];
  StoreAnyBytes(to, static_cast<int>(count < kBytes ? count : kBytes), stored);
}

/// Adjacent items of a row, in their stored form.
template <class T, int kCount = 8>
struct Chunk {
  static constexpr int kItems = kCount;
  static constexpr int kBytes = kItems * static_cast<int>(kItemSize<T>);
  static constexpr int kWords = kBytes / 4;
  std::uint32_t words[kWords];

  __device__ __forceinline__ float Item(int i) const {
    if constexpr (kItemSize<T> == 4) {
      return std::bit_cast<float>(words[i]);
    } else {
      return Widen<T>(i % 2 == 0 ? words[i / 2] & 0xFFFFu : words[i / 2] >> 16);
    }
  }

  /// Loads the items of a row from `col` on; items from `cols` on are 0. Requires: col < cols.
  __device__ __forceinline__ void Load(const std::byte* row, std::size_t col, std::size_t cols,
                                       bool aligned) {
    LoadBytes<kBytes>(row + col * kItemSize<T>, (cols - col) * kItemSize<T>, aligned, words);
  }

  /// Loads all items at an aligned address.
  __device__ __forceinline__ void LoadAligned(const std::byte* from) {
    LoadBytes<kBytes>(from, kBytes, true, words);
  }

  /// Stores the chunk to shared memory, or loads it from there.
  __device__ __forceinline__ void Store(uint4* to) const {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i)
      to[i] = make_uint4(words[i * 4], words[i * 4 + 1], words[i * 4 + 2], words[i * 4 + 3]);
  }
  __device__ __forceinline__ void Fetch(const uint4* from) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 four = from[i];
      words[i * 4] = four.x;
      words[i * 4 + 1] = four.y;
      words[i * 4 + 2] = four.z;
      words[i * 4 + 3] = four.w;
    }
  }

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
  }

  /// Returns the amax, NaN ignored.
  __device__ __forceinline__ float Amax() const {
    if constexpr (kItemSize<T> == 2) {
      const std::uint32_t largest = LargestMagnitudes<T, kWords, false>(words);
      return fmaxf(Widen<T>(largest & 0xFFFFu), Widen<T>(largest >> 16));
    } else {
      float amax = 0.0f;
#pragma unroll
      for (int i = 0; i < kItems; ++i) amax = fmaxf(amax, fabsf(Item(i)));
      return amax;
    }
  }

  __device__ __forceinline__ ItemsAmax FindAmax() const {
    const auto item = [this](int i) { return Item(i); };
    if constexpr (kItemSize<T> == 4) return FindFloatAmax<kItems>(item);
    if constexpr (kItemSize<T> == 2) {
      const std::uint32_t largest = LargestMagnitudes<T, kWords, true>(words);
      // The bits of magnitudes have the magnitudes' order.
      const auto low = std::bit_cast<std::uint32_t>(Widen<T>(largest & 0xFFFFu));
      const auto high = std::bit_cast<std::uint32_t>(Widen<T>(largest >> 16));
      ItemsAmax amax{0.0f, low > high ? low : high};
      amax.value = std::bit_cast<float>(amax.largest);
      if (amax.IsSpecial()) amax.value = FindFloatAmax<kItems>(item).value;
      return amax;
    }
  }
};

/// Loads and stores numbers at any address.
__device__ __forceinline__ float LoadFloat(const std::byte* from) {
  return LoadItem<float>(from, 0);
}
__device__ __forceinline__ void StoreFloat(std::byte* to, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::byte>(bits >> (8 * i));
}

/// Returns true if a kernel must write nothing.
__device__ __forceinline__ bool Skips(const float* noop) {
  return noop != nullptr && *noop == 1.0f;
}

/// Raises *to to the largest value of all threads of the block. Every thread must call it.
__device__ __forceinline__ void RaiseByBlock(unsigned* to, float amax) {
  __shared__ unsigned largest;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  const unsigned bits = std::bit_cast<std::uint32_t>(amax);
  unsigned of_warp = bits;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const unsigned other = __shfl_xor_sync(0xFFFFFFFFu, of_warp, step);
    of_warp = other > of_warp ? other : of_warp;
  }
  if (threadIdx.x % 32 == 0) atomicMax(&largest, of_warp);
  __syncthreads();
  if (threadIdx.x == 0 && largest > *static_cast<volatile unsigned*>(to)) atomicMax(to, largest);
}

// Pairs of codes, which dequantizing kernels decode and round together.

/// Pairs of a word's codes. Codes of 4 bits are 4 codes apart, one in each half of the word.
template <FloatFormat F>
struct CodePairs {
  static constexpr int kCount = 16 / kBits<F>;
  static constexpr int First(int pair) { return kBits<F> == 4 ? pair : pair * 2; }
  static constexpr int Second(int pair) { return First(pair) + (kBits<F> == 4 ? 4 : 1); }
};

/// Returns the values of a pair of a word's codes. A NaN has any payload.
template <FloatFormat F>
__device__ __forceinline__ void DecodePair(std::uint32_t word, int pair, float& first,
                                           float& second) {
#if NF_DEVICE_ARCH >= 890
  std::uint32_t halves;  // the two values as fp16, exact
  if constexpr (kBits<F> == 4) {
    // Moves exponent and mantissa bits to their places in fp16; its bias is larger by 14.
    static_assert(F::kBias == 1 && F::kMantissaBits == 1);
    const std::uint32_t magnitudes = pair < 3 ? word << (9 - pair * 4) : word >> (pair * 4 - 9);
    halves = (word << (12 - pair * 4) & 0x80008000u) | (magnitudes & 0x0E000E00u);
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(halves) : "r"(halves), "r"(0x74007400u));
  } else {
    const auto codes = static_cast<std::uint16_t>(word >> (pair * 16));
    if constexpr (F::kMantissaBits == 3) {
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    } else {
      asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(codes));
    }
  }
  asm("{\n\t.reg .b16 low, high;\n\t"
      "mov.b32 {low, high}, %2;\n\t"
      "cvt.f32.f16 %0, low;\n\t"
      "cvt.f32.f16 %1, high;\n\t}"
      : "=f"(first), "=f"(second)
      : "r"(halves));
#else
  constexpr std::uint32_t kMask = kSignCode<F> * 2u - 1u;
  first = DecodeByProduct<F>(word >> (CodePairs<F>::First(pair) * kBits<F>)&kMask);
  second = DecodeByProduct<F>(word >> (CodePairs<F>::Second(pair) * kBits<F>)&kMask);
#endif
}

/// Rounds two values as Narrow does, the first one into the low bits. NaN gives 0x7FFF, the code of
/// no other value.
template <class T>
__device__ __forceinline__ std::uint32_t NarrowPair(float low, float high) {
#if NF_DEVICE_ARCH >= 800
  std::uint32_t pair;
  if constexpr (T::kBias == 127) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  return (low == low ? Narrow<T>(low) : 0x7FFFu) | (high == high ? Narrow<T>(high) : 0x7FFFu) << 16;
#endif
}

/// Returns true if a result of NarrowPair holds a NaN; it may be true for infinities.
template <class T, int kWords>
__device__ __forceinline__ bool MayHoldNan(const std::uint32_t (&words)[kWords]) {
  std::uint32_t found = 0;
#if NF_DEVICE_ARCH >= 800
  // found + 0 * word stays +0 until a word is NaN or infinite, and is NaN from then on.
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if constexpr (T::kBias == 127) {
      asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(found) : "r"(words[i]), "r"(0));
    } else {
      asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(found) : "r"(words[i]), "r"(0));
    }
  }
  return found != 0;
#else
#pragma unroll
  for (int i = 0; i < kWords; ++i) found |= (words[i] & 0x7FFF7FFFu) + 0x00010001u;
  return (found & 0x80008000u) != 0;
#endif
}

}  // namespace narrowfloat::cuda
