// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/codec_kernels.h"

#include <cuda_runtime.h>

#include "narrowfloat/kernels/cuda/e2m1.cuh"
#include "narrowfloat/kernels/cuda/e2m1_words.cuh"
#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/schemes/options.h"

namespace narrowfloat::cuda {
namespace {

constexpr std::uint64_t kPatterns = std::uint64_t{1} << 32, kMantissas = std::uint64_t{1} << 23,
                        kWordInputs = std::uint64_t{1} << 22;
constexpr unsigned kThreads = 256, kOfThread = 1024;

/// Calls differs(i * step) for the inputs i of this thread, if i < inputs. Adds the number of true
/// results to found[0], and stores the argument of one of them in found[1].
template <class Differs>
__device__ void Count(std::uint64_t inputs, std::uint64_t step, unsigned* found,
                      const Differs& differs) {
  const std::uint64_t first = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) * kOfThread;
  unsigned differences = 0;
  std::uint32_t example = 0;
  for (std::uint64_t i = first; i < first + kOfThread && i < inputs; ++i) {
    const auto pattern = static_cast<std::uint32_t>(i * step);
    if (!differs(pattern)) continue;
    ++differences;
    example = pattern;
  }
  if (differences == 0) return;
  atomicAdd(found, differences);
  atomicExch(found + 1, example);
}

/// Compares both halves of a pair. The other half has an input with another code.
template <FloatFormat F>
__global__ void EncodeKernel(std::uint64_t inputs, std::uint64_t step, unsigned* found) {
  Count(inputs, step, found, [](std::uint32_t pattern) {
    const float x = std::bit_cast<float>(pattern), other = std::bit_cast<float>(~pattern);
    const std::uint32_t code = Encode<F>(x), beside = Encode<F>(other);
    return EncodePair<F>(x, other) != (code | beside << kBits<F>) ||
           EncodePair<F>(other, x) != (beside | code << kBits<F>);
  });
}

/// Compares eight items, which alternate between the input and an input with another code.
__global__ void EncodeEightKernel(std::uint64_t inputs, std::uint64_t step, unsigned* found) {
  Count(inputs, step, found, [](std::uint32_t pattern) {
    const float x = std::bit_cast<float>(pattern), other = std::bit_cast<float>(~pattern);
    const std::uint32_t code = Encode<E2M1>(x), beside = Encode<E2M1>(other);
    std::uint32_t word = 0;
    for (int i = 0; i < 8; ++i) word |= (i % 2 == 0 ? code : beside) << (4 * i);
    const auto item = [&](int i) { return i % 2 == 0 ? x : other; };
    if (EncodeEightSpecial(EightFloats::Of(item)) != word) return true;
    if (x != x || other != other) return false;
    if (RoundToE2M1(fminf(fabsf(x), 6.0f)) != fabsf(Decode<E2M1>(code))) return true;
    if (fabsf(x) < kFirstSaturated &&
        (CodeE2M1<false>(fabsf(x)) - std::bit_cast<std::uint32_t>(kRoundsToIntegers)) !=
            (code & 7u))
      return true;
    return EncodeEight(item, 1.0f) != word;
  });
}

/// Compares as EncodeEightKernel, with random bytes that depend on the input, so that each byte
/// occurs with each sign, exponent and upper mantissa bits.
__global__ void StochasticKernel(std::uint64_t inputs, std::uint64_t step, unsigned* found) {
  Count(inputs, step, found, [](std::uint32_t pattern) {
    const float x = std::bit_cast<float>(pattern), other = std::bit_cast<float>(~pattern);
    const std::uint32_t low = pattern * 0x9E3779B9u, high = ~low * 0x85EBCA6Bu;
    std::uint32_t word = 0;
    for (int i = 0; i < 8; ++i) {
      const auto byte = static_cast<std::uint8_t>((i < 4 ? low : high) >> (i % 4 * 8));
      word |= EncodeStochastic(i % 2 == 0 ? x : other, byte) << (4 * i);
    }
    const auto item = [&](int i) { return i % 2 == 0 ? x : other; };
    if (EncodeEightStochasticSpecial(EightFloats::Of(item), low, high) != word) return true;
    if (x != x || other != other) return false;
    return EncodeEightStochastic(item, 1.0f, low, high) != word;
  });
}

/// Compares words of bfloat16 items, as rows and as columns. An input has the sign and mantissa of
/// the first item, its exponent, and 6 bits of a scale. The scale maps the items, whose exponents
/// differ by up to 4, to the range of E2M1.
__global__ void WordsKernel(std::uint64_t inputs, std::uint64_t step, unsigned* found) {
  Count(inputs, step, found, [](std::uint32_t pattern) {
    const std::uint32_t first = pattern & 0xFFu, exponent = (pattern >> 8 & 0xFFu) % 250u;
    std::uint32_t words[16];
    for (std::uint32_t i = 0; i < 32; ++i) {
      const std::uint32_t bits = first + i * 37u;
      const std::uint32_t mantissa = bits & (i % 5u == 4u ? 0x3Fu : 0x7Fu);
      const std::uint32_t item = (bits & 0x80u) << 8 | (exponent + i % 5u) << 7 | mantissa;
      words[i / 2] = i % 2 == 0 ? item : words[i / 2] | item << 16;
    }
    const auto item_of = [&](int i) {
      return Decode<BFloat16>(words[i / 2] >> (i % 2 * 16) & 0xFFFFu);
    };
    // Maps the largest item, which is below 1.5 times a power of two, below 7 by the scales, and
    // below 6 by the power of two.
    const std::uint32_t power = 251u - exponent;
    const std::uint32_t random = (pattern >> 16) * 0x9E3779B9u;
    const float scale = std::bit_cast<float>(power << 23 | random >> 9) * (7.0f / 6.0f);
    const float other = std::bit_cast<float>(power << 23 | ~random >> 9) * (7.0f / 6.0f);
    const auto of_power = std::bit_cast<float>((power + 1u) << 23);
    const auto differs = [&](const std::uint32_t(&codes)[2], const auto& item, float factor) {
      bool any = false;
      for (int i = 0; i < 16; ++i)
        any |= (codes[i / 8] >> (i % 8 * 4) & 15u) != Encode<E2M1>(item(i) * factor);
      return any;
    };
    std::uint32_t of_row[8], row[2], columns[2][2];
    for (int i = 0; i < 8; ++i) of_row[i] = words[i];
    EncodeRowWords(of_row, scale, row);
    bool any = differs(row, item_of, scale);
    EncodeRowWordsByPower(of_row, of_power, row);
    any |= differs(row, item_of, of_power);
    EncodeColumnWords(words, {scale, other}, columns);
    for (int c = 0; c < 2; ++c)
      any |= differs(
          columns[c], [&](int i) { return item_of(i * 2 + c); }, c == 0 ? scale : other);
    EncodeColumnWordsByPower(words, {of_power, of_power * 0.5f}, columns);
    for (int c = 0; c < 2; ++c)
      any |= differs(
          columns[c], [&](int i) { return item_of(i * 2 + c); },
          c == 0 ? of_power : of_power * 0.5f);
    return any;
  });
}

/// Compares quotients of all mantissas by the two divisors of NVFP4's errors. The exponents are 0
/// and the smallest and the largest that QuotientBy() allows: a power of two does not change the
/// quotient's mantissa.
__global__ void QuotientKernel(std::uint64_t inputs, std::uint64_t step, unsigned* found) {
  Count(inputs, step, found, [](std::uint32_t mantissa) {
    for (const float divisor :
         {kMaxValue<E4M3> * kMaxValue<E2M1>, kReducedE4M3Max * kMaxValue<E2M1>}) {
      for (const std::uint32_t exponent : {127u - 90u, 127u, 127u + 92u}) {
        const auto x = std::bit_cast<float>(exponent << 23 | mantissa);
        if (QuotientBy(x, divisor, 1.0f / divisor) != x / divisor) return true;
      }
    }
    return false;
  });
}

template <class T>
__global__ void NarrowKernel(std::uint64_t inputs, std::uint64_t step, unsigned* found) {
  Count(inputs, step, found, [](std::uint32_t pattern) {
    const float x = std::bit_cast<float>(pattern);
    return Narrow<T>(x) != Encode<T, Overflow::kInfinity>(x);
  });
}

__device__ bool Same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (a != a && b != b);
}

/// Compares both halves of a pair. The other half has an input with another code. NaN is 0x7FFF.
template <class T>
__global__ void NarrowPairKernel(std::uint64_t inputs, std::uint64_t step, unsigned* found) {
  Count(inputs, step, found, [](std::uint32_t pattern) {
    const auto code_of = [](float x) {
      return x == x ? Encode<T, Overflow::kInfinity>(x) : 0x7FFFu;
    };
    const float x = std::bit_cast<float>(pattern), other = std::bit_cast<float>(~pattern);
    const std::uint32_t code = code_of(x), beside = code_of(other);
    const std::uint32_t words[2] = {NarrowPair<T>(x, other), NarrowPair<T>(other, x)};
    if (words[0] != (code | beside << 16) || words[1] != (beside | code << 16)) return true;
    // MayHoldNan must find a NaN in each half of each word, and must not report a finite value.
    const auto is_finite = [](float y) { return y - y == 0.0f; };
    const std::uint32_t ones[2] = {0x3C003C00u, 0x3C003C00u};
    bool differs = MayHoldNan<T>(ones);
    for (const std::uint32_t half : {code, code << 16}) {
      const std::uint32_t first[2] = {half, ones[1]}, second[2] = {ones[0], half};
      for (const bool holds : {MayHoldNan<T>(first), MayHoldNan<T>(second)}) {
        if (x != x && !holds) differs = true;
        if (holds && is_finite(Decode<T>(code))) differs = true;
      }
    }
    return differs;
  });
}

/// Compares words whose lower half has all pairs of 8-bit codes, or all quadruples of 4-bit codes.
template <FloatFormat F>
__global__ void DecodePairKernel(std::uint64_t inputs, std::uint64_t step, unsigned* found) {
  Count(inputs, step, found, [](std::uint32_t pattern) {
    const std::uint32_t word = pattern | (pattern * 0x9E37u & 0xFFFFu) << 16;
    constexpr std::uint32_t kMask = kSignCode<F> * 2u - 1u;
    bool differs = false;
#pragma unroll
    for (int pair = 0; pair < CodePairs<F>::kCount; ++pair) {
      float first, second;
      DecodePair<F>(word, pair, first, second);
      const int at[2] = {CodePairs<F>::First(pair) * kBits<F>,
                         CodePairs<F>::Second(pair) * kBits<F>};
      if (!Same(first, Decode<F>(word >> at[0] & kMask)) ||
          !Same(second, Decode<F>(word >> at[1] & kMask)))
        differs = true;
    }
    return differs;
  });
}

template <FloatFormat F>
__global__ void DecodeKernel(std::uint64_t inputs, std::uint64_t step, unsigned* found) {
  Count(inputs, step, found, [](std::uint32_t code) {
    if constexpr (kBits<F> == 16) {
      return !Same(Widen<F>(code), Decode<F>(code));
    } else {
      return !Same(DecodeByProduct<F>(code), Decode<F>(code));
    }
  });
}

Comparison Compare(const char* name, void (*kernel)(std::uint64_t, std::uint64_t, unsigned*),
                   std::uint64_t inputs, std::uint64_t step) {
  const Memory memory(2 * sizeof(unsigned), nullptr);
  Comparison result{name, inputs};
  unsigned found[2] = {0, 0};
  Copy(memory.data(), found, sizeof found, nullptr);
  const auto blocks =
      static_cast<unsigned>((inputs + kThreads * kOfThread - 1) / (kThreads * kOfThread));
  Launch(kernel, dim3(blocks), dim3(kThreads), 0, nullptr, inputs, step,
         reinterpret_cast<unsigned*>(memory.data()));
  Copy(found, memory.data(), sizeof found, nullptr);
  Synchronize(nullptr);
  result.differences = found[0];
  result.example = found[1];
  return result;
}

}  // namespace

std::vector<Comparison> CompareConversions(std::uint64_t step) {
  const std::uint64_t floats = (kPatterns + step - 1) / step;
  return {Compare("fp32 to E4M3", &EncodeKernel<E4M3>, floats, step),
          Compare("fp32 to E5M2", &EncodeKernel<E5M2>, floats, step),
          Compare("eight of fp32 to E2M1", &EncodeEightKernel, floats, step),
          Compare("eight of fp32 to E2M1, stochastic", &StochasticKernel, floats, step),
          Compare("words of bf16 to E2M1", &WordsKernel, (kWordInputs + step - 1) / step, step),
          Compare("quotients of mantissas", &QuotientKernel, (kMantissas + step - 1) / step, step),
          Compare("fp32 to fp16", &NarrowKernel<Float16>, floats, step),
          Compare("fp32 to bf16", &NarrowKernel<BFloat16>, floats, step),
          Compare("two of fp32 to fp16", &NarrowPairKernel<Float16>, floats, step),
          Compare("two of fp32 to bf16", &NarrowPairKernel<BFloat16>, floats, step),
          Compare("fp16 to fp32", &DecodeKernel<Float16>, 65536, 1),
          Compare("bf16 to fp32", &DecodeKernel<BFloat16>, 65536, 1),
          Compare("E4M3 to fp32", &DecodeKernel<E4M3>, 256, 1),
          Compare("E5M2 to fp32", &DecodeKernel<E5M2>, 256, 1),
          Compare("E2M1 to fp32", &DecodeKernel<E2M1>, 16, 1),
          Compare("pairs of E4M3 to fp32", &DecodePairKernel<E4M3>, 65536, 1),
          Compare("pairs of E5M2 to fp32", &DecodePairKernel<E5M2>, 65536, 1),
          Compare("pairs of E2M1 to fp32", &DecodePairKernel<E2M1>, 65536, 1)};
}

}  // namespace narrowfloat::cuda
