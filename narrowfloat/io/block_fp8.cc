// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/block_fp8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/schemes/fp8_block.h"
#include "narrowfloat/schemes/mxfp8.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

constexpr int kWidest = 16;  // shifts that any E2M1 number could take are within +-kWidest

/// The shifts under which an E2M1 number is an E4M3 number: low to high.
struct Shifts {
  int low = kWidest, high = -kWidest;
};

bool IsExact(float value) {
  return std::abs(value) <= kMaxValue<E4M3> && Decode<E4M3>(Encode<E4M3>(value)) == value;
}

/// By code. Those of zeros are empty: they take every shift.
const std::array<Shifts, 16>& ShiftsOfCodes() {
  static const std::array<Shifts, 16> table = [] {
    std::array<Shifts, 16> shifts{};
    for (std::uint32_t code = 0; code < shifts.size(); ++code) {
      for (int shift = -kWidest; shift <= kWidest; ++shift) {
        const float value = Decode<E2M1>(code);
        if (value == 0 || !IsExact(std::ldexp(value, shift))) continue;
        shifts[code].low = std::min(shifts[code].low, shift);
        shifts[code].high = std::max(shifts[code].high, shift);
      }
    }
    return shifts;
  }();
  return table;
}

/// A tile's rows and columns of a matrix, and where its codes and scales lie.
struct TileOf {
  const ForeignWeight& form;
  TilePlace place;
  std::size_t row_begin, row_end, col_begin, col_end;

  TileOf(const ForeignWeight& weight, TilePlace at)
      : form(weight),
        place(at),
        row_begin(at.row * kFp8Block),
        row_end(std::min(weight.rows, row_begin + kFp8Block)),
        col_begin(at.col * kFp8Block),
        col_end(std::min(weight.cols, col_begin + kFp8Block)) {}

  std::size_t Item(std::size_t row, std::size_t col) const {
    return (place.matrix * form.rows + row) * form.cols + col;
  }
  std::size_t Scale(std::size_t row, std::size_t col) const {
    return (place.matrix * form.ScaleRows() + row / form.block.rows) * form.ScaleCols() +
           col / form.block.cols;
  }
};

std::uint32_t CodeAt(const CanonicalWeight& weight, std::size_t item) {
  return std::to_integer<std::uint32_t>(weight.codes[item / 2]) >> item % 2 * 4 & 0xF;
}

/// Returns the E8M0 code of the tile's scale; nullopt if no scale makes all values exact.
std::optional<int> TileScale(const CanonicalWeight& weight, const TileOf& tile) {
  const std::array<Shifts, 16>& shifts = ShiftsOfCodes();
  int least = 0, most = static_cast<int>(E8M0::kMaxCode), largest = -1;
  for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
    for (std::size_t begin = tile.col_begin; begin < tile.col_end;
         begin += weight.form.block.cols) {
      const int scale = std::to_integer<int>(weight.scales[tile.Scale(row, begin)]);
      const std::size_t end = std::min(tile.col_end, begin + weight.form.block.cols);
      if (scale == static_cast<int>(E8M0::kNanCode)) return std::nullopt;
      for (std::size_t col = begin; col < end; ++col) {
        const Shifts& of = shifts[CodeAt(weight, tile.Item(row, col))];
        if (of.low > of.high) continue;
        least = std::max(least, scale - of.high);
        most = std::min(most, scale - of.low);
        largest = std::max(largest, scale);
      }
    }
  }
  if (least > most) return std::nullopt;
  // 6 times 2^6 is the largest that all of E2M1 reaches below 448. Of zeros: 1.
  constexpr int kHeadroom = 6, kOne = 127;
  return std::clamp(largest < 0 ? kOne : largest - kHeadroom, least, most);
}

/// The tiles of a weight in the order of their scales.
std::vector<TilePlace> Tiles(const ForeignWeight& form) {
  std::vector<TilePlace> tiles;
  for (std::size_t matrix = 0; matrix < form.matrices; ++matrix) {
    for (std::size_t row = 0; row * kFp8Block < form.rows; ++row) {
      for (std::size_t col = 0; col * kFp8Block < form.cols; ++col)
        tiles.push_back({matrix, row, col});
    }
  }
  return tiles;
}

/// Stores a tile's codes under its scale.
void EncodeTile(const CanonicalWeight& weight, const TileOf& tile, int tile_scale,
                std::byte* codes) {
  for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
    for (std::size_t begin = tile.col_begin; begin < tile.col_end;
         begin += weight.form.block.cols) {
      const int scale = std::to_integer<int>(weight.scales[tile.Scale(row, begin)]);
      std::array<std::byte, 16> encoded{};
      for (std::uint32_t code = 0; code < encoded.size(); ++code) {
        const int shift = std::clamp(scale - tile_scale, -kWidest, kWidest);
        encoded[code] = static_cast<std::byte>(Encode<E4M3>(std::ldexp(Decode<E2M1>(code), shift)));
      }
      const std::size_t end = std::min(tile.col_end, begin + weight.form.block.cols);
      for (std::size_t col = begin; col < end; ++col) {
        const std::size_t item = tile.Item(row, col);
        codes[item] = encoded[CodeAt(weight, item)];
      }
    }
  }
}

CanonicalWeight BlockFp8Like(const CanonicalWeight& weight, std::vector<std::byte>& codes) {
  CanonicalWeight out{.form = weight.form, .codes = codes, .scales = {}};
  out.form.codes = FileDType::kF8E4M3;
  out.form.scale = FileDType::kF8E8M0;
  out.form.block = {kFp8Block, kFp8Block};
  out.form.global = GlobalScale::kNone;
  return out;
}

/// The E8M0 code of a power of two that it has.
std::optional<std::byte> PowerOf(float scale) {
  const std::uint32_t code = EncodeE8M0Up(scale);
  if (code == E8M0::kNanCode || DecodeE8M0(code) != scale) return std::nullopt;
  return static_cast<std::byte>(code);
}

/// Quantizes a tile again under the smallest power of two at or above its largest value / 448.
std::byte RequantizeTile(const CanonicalWeight& weight, const TileOf& tile, float scale,
                         std::byte* codes, Loss& loss) {
  const auto value = [&](std::size_t item) {
    return Decode<E4M3>(std::to_integer<std::uint32_t>(weight.codes[item])) * scale;
  };
  const auto each = [&](auto&& visit) {
    for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
      for (std::size_t col = tile.col_begin; col < tile.col_end; ++col) visit(tile.Item(row, col));
    }
  };
  float amax = 0;
  each([&](std::size_t item) { amax = std::max(amax, std::abs(value(item))); });
  const std::uint32_t code = EncodeE8M0Up(amax / kMaxValue<E4M3>);
  const float multiplier = DecodeE8M0Reciprocal(code), back = DecodeE8M0(code);
  each([&](std::size_t item) {
    const float before = value(item);
    codes[item] = static_cast<std::byte>(Encode<E4M3>(before * multiplier));
    const float after = Decode<E4M3>(std::to_integer<std::uint32_t>(codes[item])) * back;
    ++loss.values;
    if (after == before || std::isnan(before)) return;
    ++loss.changed;
    const double change = std::abs(static_cast<double>(after) - static_cast<double>(before));
    loss.largest = std::max(loss.largest, change / std::abs(static_cast<double>(before)));
  });
  return static_cast<std::byte>(code);
}

}  // namespace

bool IsMxfp4(const ForeignWeight& form) {
  return form.Packed() && form.block == BlockShape{1, kMxBlock} &&
         form.global == GlobalScale::kNone &&
         (form.scale == FileDType::kF8E8M0 || form.scale == FileDType::kU8);
}

bool IsBlockFp8(const ForeignWeight& form) {
  return form.codes == FileDType::kF8E4M3 && form.block == BlockShape{kFp8Block, kFp8Block};
}

bool FitByExponents(const ForeignWeight& form, std::span<const std::byte> scales) {
  constexpr int kSpan = 14;
  for (const TilePlace& place : Tiles(form)) {
    const TileOf tile(form, place);
    int least = E8M0::kNanCode, most = 0;
    for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
      for (std::size_t col = tile.col_begin; col < tile.col_end; col += form.block.cols) {
        const int scale = std::to_integer<int>(scales[tile.Scale(row, col)]);
        least = std::min(least, scale);
        most = std::max(most, scale);
      }
    }
    // Near both ends of E8M0, the tile's own scale might not be one.
    const bool far_from_ends = least >= kSpan && most < static_cast<int>(E8M0::kMaxCode);
    if (most - least > kSpan || !far_from_ends) return false;
  }
  return true;
}

std::optional<TilePlace> FindUnfitTile(const CanonicalWeight& weight) {
  for (const TilePlace& place : Tiles(weight.form)) {
    if (!TileScale(weight, TileOf(weight.form, place))) return place;
  }
  return std::nullopt;
}

CanonicalWeight Mxfp4ToBlockFp8(const CanonicalWeight& weight, std::vector<std::byte>& codes) {
  const std::vector<TilePlace> tiles = Tiles(weight.form);
  codes.resize(weight.form.matrices * weight.form.rows * weight.form.cols);
  CanonicalWeight out = BlockFp8Like(weight, codes);
  out.scales.resize(tiles.size());
  ParallelFor({}, tiles.size(), [&](std::size_t i) {
    const TileOf tile(weight.form, tiles[i]);
    const int scale = TileScale(weight, tile).value();
    out.scales[i] = static_cast<std::byte>(scale);
    EncodeTile(weight, tile, scale, codes.data());
  });
  return out;
}

void Loss::Add(const Loss& other) {
  values += other.values;
  changed += other.changed;
  largest = std::max(largest, other.largest);
}

CanonicalWeight ToPowerOfTwoScales(const CanonicalWeight& weight, std::vector<std::byte>& codes,
                                   int threads, Loss& loss) {
  const std::vector<TilePlace> tiles = Tiles(weight.form);
  const auto scale_at = [&](std::size_t i) {
    return ScaleValue(weight.form.scale, weight.scales, i);
  };
  codes.assign(weight.codes.begin(), weight.codes.end());
  CanonicalWeight out = BlockFp8Like(weight, codes);
  bool powers = true;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const float scale = scale_at(i);
    if (!(scale > 0) || std::isinf(scale)) {
      throw InvalidArgument(fmt::format("the scale of the tile [{}, {}] must be positive, got {}",
                                        tiles[i].row, tiles[i].col, scale));
    }
    const std::optional<std::byte> power = PowerOf(scale);
    powers = powers && power;
    out.scales.push_back(power.value_or(std::byte{}));
  }
  if (powers) return out;
  std::vector<Loss> losses(tiles.size());
  ParallelFor({.threads = threads}, tiles.size(), [&](std::size_t i) {
    const TileOf tile(weight.form, tiles[i]);
    out.scales[i] = RequantizeTile(weight, tile, scale_at(i), codes.data(), losses[i]);
  });
  for (const Loss& of_tile : losses) loss.Add(of_tile);
  return out;
}

}  // namespace narrowfloat::io
