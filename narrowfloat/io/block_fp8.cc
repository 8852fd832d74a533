// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/block_fp8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "narrowfloat/io/decode_weight.h"
#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/schemes/fp8_block.h"
#include "narrowfloat/schemes/mxfp8.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/float_environment.h"

namespace narrowfloat::io {
namespace {

constexpr int kWidest = 16;  // every exact shift of an E2M1 number is within +-kWidest

/// The range of shifts s for which an E2M1 number times 2^s is an E4M3 number.
struct Shifts {
  int low = kWidest, high = -kWidest;
};

bool IsExact(float value) {
  return std::abs(value) <= kMaxValue<E4M3> && Decode<E4M3>(Encode<E4M3>(value)) == value;
}

/// Returns the range for each code. The ranges of zeros are empty: every shift is exact for them.
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

/// Returns the range of shifts for which all E2M1 numbers become E4M3 numbers: -8 to 6.
const Shifts& CommonShifts() {
  static const Shifts common = [] {
    Shifts shifts{-kWidest, kWidest};
    for (const Shifts& of : ShiftsOfCodes()) {
      if (of.low > of.high) continue;
      shifts.low = std::max(shifts.low, of.low);
      shifts.high = std::min(shifts.high, of.high);
    }
    return shifts;
  }();
  return common;
}

/// The E4M3 codes of both E2M1 codes of a byte.
using CodePair = std::array<std::byte, 2>;

/// Returns the table index of a shift from -kWidest to kWidest.
std::size_t IndexOf(int shift) {
  const int index = shift + kWidest;
  return static_cast<std::size_t>(index);
}

/// Returns the E4M3 codes of E2M1 numbers times 2^shift, indexed by bytes of two E2M1 codes.
const std::array<CodePair, 256>& ShiftedCodes(int shift) {
  static const auto tables = [] {
    std::array<std::array<CodePair, 256>, 2 * kWidest + 1> all{};
    for (int by = -kWidest; by <= kWidest; ++by) {
      const auto shifted = [by](std::uint32_t code) {
        return static_cast<std::byte>(Encode<E4M3>(std::ldexp(Decode<E2M1>(code), by)));
      };
      std::array<CodePair, 256>& table = all[IndexOf(by)];
      for (std::uint32_t byte = 0; byte < table.size(); ++byte)
        table[byte] = {shifted(byte & 0xF), shifted(byte >> 4)};
    }
    return all;
  }();
  return tables[IndexOf(shift)];
}

/// A tile's rows and columns of a matrix, and the positions of its codes and scales.
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

/// Calls visit(scale, codes, item) for each block of an MXFP4 tile: the code of its E8M0 scale, the
/// bytes of its codes and the index of its first value.
template <class Visit>
void VisitBlocks(const CanonicalWeight& weight, const TileOf& tile, Visit visit) {
  for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
    for (std::size_t col = tile.col_begin; col < tile.col_end; col += weight.form.block.cols) {
      const std::size_t item = tile.Item(row, col);
      const std::size_t count = std::min(tile.col_end - col, weight.form.block.cols);
      visit(std::to_integer<int>(weight.scales[tile.Scale(row, col)]),
            weight.codes.subspan(item / 2, count / 2), item);
    }
  }
}

/// Returns whether the codes of any number are not zero.
bool AnyNonzero(std::span<const std::byte> codes) {
  std::byte bits{0};
  for (const std::byte pair : codes) bits |= pair;
  return (bits & std::byte{0x77}) != std::byte{0};
}

/// Returns the E8M0 code of a tile's scale that keeps all values exact, the nearest one to
/// `wanted`; nullopt if no scale does. Requires: no scale is NaN.
std::optional<int> NearestTileScale(const CanonicalWeight& weight, const TileOf& tile, int wanted) {
  const std::array<Shifts, 16>& shifts = ShiftsOfCodes();
  int least = 0, most = static_cast<int>(E8M0::kMaxCode);
  VisitBlocks(weight, tile, [&](int scale, std::span<const std::byte> codes, std::size_t) {
    const auto narrow = [&](std::byte code) {
      const Shifts& of = shifts[std::to_integer<std::size_t>(code)];
      if (of.low > of.high) return;
      least = std::max(least, scale - of.high);
      most = std::min(most, scale - of.low);
    };
    for (const std::byte pair : codes) {
      narrow(pair & std::byte{0xF});
      narrow(pair >> 4);
    }
  });
  if (least > most) return std::nullopt;
  return std::clamp(wanted, least, most);
}

/// Returns the E8M0 code of the tile's scale; nullopt if no scale keeps all values exact.
std::optional<int> TileScale(const CanonicalWeight& weight, const TileOf& tile) {
  int smallest = static_cast<int>(E8M0::kMaxCode), largest = -1;  // of blocks that are not zero
  bool any_nan = false;
  VisitBlocks(weight, tile, [&](int scale, std::span<const std::byte> codes, std::size_t) {
    any_nan = any_nan || scale == static_cast<int>(E8M0::kNanCode);
    if (!AnyNonzero(codes)) return;
    smallest = std::min(smallest, scale);
    largest = std::max(largest, scale);
  });
  constexpr int kOne = 127;
  if (any_nan) return std::nullopt;
  if (largest < 0) return kOne;
  const auto [low, high] = CommonShifts();
  const int wanted = largest - high;  // the largest number, 6, becomes 384
  if (wanted >= 0 && smallest - wanted >= low) return wanted;
  return NearestTileScale(weight, tile, wanted);
}

/// Returns the tiles of a weight in the order of their scales.
std::vector<TilePlace> Tiles(const ForeignWeight& form) {
  std::vector<TilePlace> tiles;
  // An empty weight may have any number of matrices and rows.
  if (form.rows == 0 || form.cols == 0) return tiles;
  for (std::size_t matrix = 0; matrix < form.matrices; ++matrix) {
    for (std::size_t row = 0; row * kFp8Block < form.rows; ++row) {
      for (std::size_t col = 0; col * kFp8Block < form.cols; ++col)
        tiles.push_back({matrix, row, col});
    }
  }
  return tiles;
}

/// Stores a tile's values as codes under its scale.
void EncodeTile(const CanonicalWeight& weight, const TileOf& tile, int tile_scale,
                std::byte* codes) {
  VisitBlocks(weight, tile, [&](int scale, std::span<const std::byte> pairs, std::size_t item) {
    // Only blocks of zeros have shifts outside of the table.
    const auto& table = ShiftedCodes(std::clamp(scale - tile_scale, -kWidest, kWidest));
    std::byte* out = codes + item;
    for (const std::byte pair : pairs) {
      std::memcpy(out, table[std::to_integer<std::size_t>(pair)].data(), sizeof(CodePair));
      out += sizeof(CodePair);
    }
  });
}

CanonicalWeight BlockFp8Like(const CanonicalWeight& weight, std::vector<std::byte>& codes) {
  CanonicalWeight out{.form = weight.form, .codes = codes, .scales = {}};
  out.form.codes = FileDType::kF8E4M3;
  out.form.scale = FileDType::kF8E8M0;
  out.form.block = {kFp8Block, kFp8Block};
  out.form.global = GlobalScale::kNone;
  return out;
}

/// Returns the E8M0 code of `scale`; nullopt if it is not an E8M0 value.
std::optional<std::byte> PowerOf(float scale) {
  const std::uint32_t code = EncodeE8M0Up(scale);
  if (code == E8M0::kNanCode || DecodeE8M0(code) != scale) return std::nullopt;
  return static_cast<std::byte>(code);
}

bool IsPositive(float scale) {
  return scale > 0 && std::isfinite(scale);
}

/// Returns whether all E4M3 codes of a tile are zeros of either sign.
bool IsOfZeros(const CanonicalWeight& weight, const TileOf& tile) {
  std::byte bits{0};
  for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
    const std::size_t item = tile.Item(row, tile.col_begin);
    for (const std::byte code : weight.codes.subspan(item, tile.col_end - tile.col_begin))
      bits |= code;
  }
  return (bits & std::byte{0x7F}) == std::byte{0};
}

/// Quantizes a tile again, with the smallest power-of-two scale at or above its amax / 448.
std::byte RequantizeTile(const CanonicalWeight& weight, const TileOf& tile, float scale,
                         std::byte* codes, Loss& loss) {
  const auto visit_rows = [&](auto&& visit) {
    for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
      const std::size_t item = tile.Item(row, tile.col_begin);
      visit(weight.codes.subspan(item, tile.col_end - tile.col_begin), codes + item);
    }
  };
  std::array<std::uint32_t, 256> counts{};
  visit_rows([&](std::span<const std::byte> row, std::byte*) {
    for (const std::byte old_code : row) ++counts[std::to_integer<std::size_t>(old_code)];
  });
  std::array<float, 256> before{};
  float amax = 0;
  for (std::uint32_t i = 0; i < counts.size(); ++i) {
    before[i] = Decode<E4M3>(i) * scale;
    if (counts[i] > 0) amax = std::max(amax, std::abs(before[i]));  // ignores NaN
  }
  const std::uint32_t code = EncodeE8M0Up(amax / kMaxValue<E4M3>);
  const float multiplier = DecodeE8M0Reciprocal(code), back = DecodeE8M0(code);
  std::array<std::byte, 256> encoded{};
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::uint32_t new_code = Encode<E4M3>(before[i] * multiplier);
    encoded[i] = static_cast<std::byte>(new_code);
    const float after = Decode<E4M3>(new_code) * back;
    loss.values += counts[i];
    if (counts[i] == 0 || after == before[i] || std::isnan(before[i])) continue;
    loss.changed += counts[i];
    const double change = std::abs(static_cast<double>(after) - static_cast<double>(before[i]));
    loss.largest = std::max(loss.largest, change / std::abs(static_cast<double>(before[i])));
  }
  visit_rows([&](std::span<const std::byte> row, std::byte* out) {
    for (std::size_t i = 0; i < row.size(); ++i)
      out[i] = encoded[std::to_integer<std::size_t>(row[i])];
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
  const auto [low, high] = CommonShifts();
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
    // The tile's scale is up to `high` below the largest one and must stay in E8M0's range.
    const bool far_from_ends = least >= high && most <= static_cast<int>(E8M0::kMaxCode);
    if (most - least > high - low || !far_from_ends) return false;
  }
  return true;
}

std::optional<TilePlace> FindUnfitTile(const CanonicalWeight& weight) {
  for (const TilePlace& place : Tiles(weight.form)) {
    if (!TileScale(weight, TileOf(weight.form, place))) return place;
  }
  return std::nullopt;
}

CanonicalWeight Mxfp4ToBlockFp8(const CanonicalWeight& weight, std::vector<std::byte>& codes,
                                int threads) {
  const std::vector<TilePlace> tiles = Tiles(weight.form);
  codes.resize(weight.form.matrices * weight.form.rows * weight.form.cols);
  CanonicalWeight out = BlockFp8Like(weight, codes);
  out.scales.resize(tiles.size());
  ParallelFor({.threads = threads}, tiles.size(), [&](std::size_t i) {
    const TileOf tile(weight.form, tiles[i]);
    const int scale = TileScale(weight, tile).value();
    out.scales[i] = static_cast<std::byte>(scale);
    EncodeTile(weight, tile, scale, codes.data());
  });
  return out;
}

bool HasPositiveScales(FileDType type, std::span<const std::byte> scales) {
  const std::size_t count = 8 * scales.size() / Info(type).bits;
  for (std::size_t i = 0; i < count; ++i) {
    if (!IsPositive(ScaleValue(type, scales, i))) return false;
  }
  return true;
}

void CheckTileScales(const CanonicalWeight& weight) {
  const std::vector<TilePlace> tiles = Tiles(weight.form);
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const float scale = ScaleValue(weight.form.scale, weight.scales, i);
    if (IsPositive(scale)) continue;
    const bool is_zero = scale == 0 && !std::signbit(scale);
    if (is_zero && IsOfZeros(weight, TileOf(weight.form, tiles[i]))) continue;
    const auto& [matrix, row, col] = tiles[i];
    throw InvalidArgument(fmt::format(
        "the scale of the tile [{}, {}]{} must be positive and finite, or zero over codes of zero, "
        "got {}",
        row, col, weight.form.matrices > 1 ? fmt::format(" of matrix {}", matrix) : "", scale));
  }
}

void Loss::Add(const Loss& other) {
  values += other.values;
  changed += other.changed;
  largest = std::max(largest, other.largest);
}

CanonicalWeight ToPowerOfTwoScales(const CanonicalWeight& weight, std::vector<std::byte>& codes,
                                   int threads, Loss& loss) {
  const FloatEnvironment environment;
  CheckTileScales(weight);
  const std::vector<TilePlace> tiles = Tiles(weight.form);
  const auto scale_at = [&](std::size_t i) {
    return ScaleValue(weight.form.scale, weight.scales, i);
  };
  codes.assign(weight.codes.begin(), weight.codes.end());
  CanonicalWeight out = BlockFp8Like(weight, codes);
  bool powers = true;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const float scale = scale_at(i);
    const std::optional<std::byte> power = scale == 0 ? std::byte{0} : PowerOf(scale);
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
