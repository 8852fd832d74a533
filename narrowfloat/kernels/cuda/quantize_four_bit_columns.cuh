// SPDX-License-Identifier: Apache-2.0
// Quantizes the columns of a tile in shared memory, for schemes of 4-bit codes.
#pragma once

#include <array>

#include "narrowfloat/kernels/cuda/four_over_six.cuh"
#include "narrowfloat/kernels/cuda/hadamard.cuh"
#include "narrowfloat/kernels/cuda/quantize_columns.cuh"
#include "narrowfloat/kernels/cuda/quantize_rows.cuh"
#include "narrowfloat/numerics/stochastic.h"

namespace narrowfloat::cuda {
namespace {

/// Replaces the items of 16 rows of two columns by their Hadamard transforms.
template <class T>
__device__ __forceinline__ void TransformPair(ColumnPair<T, static_cast<int>(kHadamardSize)>& pair,
                                              std::uint32_t sign_mask) {
  if constexpr (kItemSize<T> == 2) {
    TransformWords<T>(pair.words, sign_mask);
  } else {
#pragma unroll 1
    for (int column = 0; column < 2; ++column) {
      // As in TransformWords: shifts each column out at one end, and its transform in at the
      // other.
      std::uint32_t words[kHadamardSize];
#pragma unroll
      for (std::size_t k = 0; k < kHadamardSize; ++k) words[k] = pair.words[k * 2];
      TransformWords<T>(words, sign_mask);
#pragma unroll
      for (std::size_t k = 0; k < kHadamardSize; ++k) {
        pair.words[k * 2] = pair.words[k * 2 + 1];
        pair.words[k * 2 + 1] = words[k];
      }
    }
  }
}

/// Chooses between 4over6's candidates for two columns of 16 items. Adds the errors of a square
/// block's columns pairwise: each column of the first half to one of the second.
template <Scheme S, class T>
__device__ __forceinline__ void ChooseOfColumns(const typename S::TensorState (&states)[2],
                                                const float* factors,
                                                const ColumnPair<T, kErrorItems>& pair,
                                                const float (&amaxes)[2], int valid_rows,
                                                const bool (&is_valid)[2],
                                                BlockScale (&scales)[2]) {
  static_assert(kBlockItems<S> == kErrorItems);
  std::array<BlockScale, 2> candidates[2];
  float errors[2][2];  // [column][candidate]
#pragma unroll
  for (int column = 0; column < 2; ++column) {
    const int left = valid_rows < 0 ? 0 : valid_rows;
    const int count = !is_valid[column] ? 0 : left < kErrorItems ? left : kErrorItems;
    candidates[column] = CandidatesOf<S>(amaxes[column], states[column], factors);
    FindErrors<S>(
        states[column], [&](int i) { return pair.Item(column, i); }, count, candidates[column],
        errors[column]);
  }
  if constexpr (kIsSquare<S>) {
    constexpr int kThreadsOfBlock = kBlockItems<S> / 2;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int half = kThreadsOfBlock / 2; half > 0; half /= 2) {
#pragma unroll
        for (int column = 0; column < 2; ++column)
          errors[column][c] += __shfl_down_sync(kAllLanes, errors[column][c], half);
      }
      const float sum = errors[0][c] + errors[1][c];
      errors[0][c] = errors[1][c] =
          __shfl_sync(kAllLanes, sum, static_cast<int>(threadIdx.x % 32) & ~(kThreadsOfBlock - 1));
    }
  }
#pragma unroll
  for (int column = 0; column < 2; ++column)
    scales[column] = Choose(candidates[column], errors[column]);
}

/// Encodes the columns of a tile from items in shared memory; writes the codes to `pieces`. kPlain:
/// the tile is inside, and codes are aligned.
template <Scheme S, class T, Extras kExtras, bool kPlain>
__device__ __forceinline__ void QuantizeFourBitColumns(const QuantizeArguments& args,
                                                       const TileOrigin& origin,
                                                       const std::byte* tile, uint4* pieces,
                                                       SharedAmaxes<S>& amaxes) {
  constexpr bool kWithOptions = kExtras == Extras::kOptions;
  constexpr int kBlock = kBlockItems<S>, kRun = static_cast<int>(kRandomRun);
  static_assert(S::kLayout.columnwise_transposed && kStripRows % kBlock == 0);
  const DirectionMemory<std::byte>& out = args.columnwise;
  const StripPlace<kPlain> place(args.in.shape, origin);
  const typename S::TensorState state = StateOf<S>(args, out);
  const float* factors = FactorsOf<S>(out);
  const auto state_of = [&](int column) {
    if (!kWithOptions || out.line_amaxes == nullptr) return state;
    const std::size_t line = origin.col + static_cast<std::size_t>(place.col + column);
    return S::Prepare(place.is_valid[column] ? out.line_amaxes[line] : 0.0f, args.options);
  };
#pragma unroll 1
  for (int first = 0; first < kStripRows; first += kBlock) {
    const int row = place.row + first, block = row / kBlock;
    ColumnPair<T, kBlock> pair;
    pair.Load(tile, row, place.col);
    if constexpr (kExtras != Extras::kNone && S::kOptions.Has(Option::kHadamard)) {
      if (kExtras == Extras::kTransform || args.transforms) TransformPair<T>(pair, args.sign_mask);
    }
    float block_amaxes[2];
    std::uint32_t largest;  // pattern of the magnitudes
    if constexpr (kIsSquare<S>) {
      largest = amaxes.largest;
#pragma unroll
      for (int column = 0; column < 2; ++column)
        block_amaxes[column] =
            std::bit_cast<float>(amaxes.square[block * kBlocks<S> + (place.col + column) / kBlock]);
    } else {
      ItemsAmax found[2];
      pair.FindAmaxes(found);
      block_amaxes[0] = found[0].value;
      block_amaxes[1] = found[1].value;
      largest = found[0].largest > found[1].largest ? found[0].largest : found[1].largest;
    }
    BlockScale scales[2];
    bool chosen = false;
    if constexpr (kWithOptions && FourOverSixScheme<S>) {
      if (UsesFourOverSix<S>(state)) {
        const typename S::TensorState states[2] = {state_of(0), state_of(1)};
        ChooseOfColumns<S, T>(states, factors, pair, block_amaxes, place.valid_rows - first,
                              place.is_valid, scales);
        chosen = true;
      }
    }
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      if (!chosen)
        scales[column] = ScaleOf<S, kWithOptions>(block_amaxes[column], state_of(column), factors);
      amaxes.scales[place.col + column][block] =
          static_cast<std::uint8_t>(scales[column].scale_inv);
    }
    const bool has_special = largest >= kFloatInfinity;
    const bool is_special = IsSpecialBlock<S>(has_special, scales[0].scale) ||
                            IsSpecialBlock<S>(has_special, scales[1].scale);
    [[maybe_unused]] const bool is_bounded = IsBounded<S>(block_amaxes[0], scales[0].scale) &&
                                             IsBounded<S>(block_amaxes[1], scales[1].scale);
#pragma unroll
    for (int i = 0; i < kBlock; i += kRun) {
      std::uint32_t codes[2][2];  // of each column
      bool done = false;
      if constexpr (kEncodesWords<T> && kExtras != Extras::kStochastic) {
        if (!IsStochastic<kExtras>(args) && !is_special && is_bounded) {
          const float of_columns[2] = {scales[0].scale, scales[1].scale};
          if constexpr (kScalesByPowers<S>) {
            EncodeColumnWordsByPower(pair.words + i, of_columns, codes);
          } else {
            EncodeColumnWords(pair.words + i, of_columns, codes);
          }
          done = true;
        }
      }
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        if (!done) {
          std::uint64_t run = 0;
          if constexpr (kWithOptions || kExtras == Extras::kStochastic) {
            run = kColumnwiseRuns +
                  (origin.col + static_cast<std::size_t>(place.col + column)) *
                      CeilDiv(args.in.shape.rows, kRandomRun) +
                  (origin.row + static_cast<std::size_t>(row + i)) / kRandomRun;
          }
          EncodeSixteen<kExtras>(
              args, [&](int k) { return pair.Item(column, i + k); }, scales[column].scale,
              is_special, run, codes[column]);
        }
        const int half = (row + i) / kRun;  // half of a piece
        uint4* piece = pieces + PieceAt<kFourBitPieces>(place.col + column, half / 2);
        reinterpret_cast<uint2*>(piece)[half % 2] = make_uint2(codes[column][0], codes[column][1]);
      }
    }
  }
  __syncthreads();
  constexpr int kFours = kBlocks<S> / 4;  // groups of four blocks per column
  const int column = static_cast<int>(threadIdx.x) / kFours,
            block = static_cast<int>(threadIdx.x) % kFours * 4;
  if (column < kTile)
    StoreFourScales<S, kPlain>(args, origin, column, block, &amaxes.scales[column][block]);
  StorePieces<4, kPlain>(args, origin, pieces);
}

}  // namespace
}  // namespace narrowfloat::cuda
