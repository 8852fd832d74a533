// SPDX-License-Identifier: Apache-2.0
// Drives the micro-kernels over tiles of MX schemes with 8-bit codes: rows, columns and both
// directions. Plain C++, compiled once: the instruction set is a table of functions, the scheme and
// the type of the items are data.
#include <algorithm>
#include <cstring>
#include <utility>

#include "hwy/cache_control.h"
#include "hwy/targets.h"
#include "narrowfloat/kernels/cpu/bodies.h"
#include "narrowfloat/kernels/cpu/micro_kernels.h"
#include "narrowfloat/kernels/cpu/tables.h"

namespace narrowfloat::cpu {
namespace {

/// A rectangle's rows: their items, the addresses to prefetch while these are encoded, and where
/// their codes go.
struct PanelRows {
  std::size_t count;
  const std::byte* items[kMicroBlock];
  const std::byte* next[kMicroBlock];
  std::byte* codes[kMicroBlock];
};

/// Memory of scales, for `kPlaces` blocks or columns.
template <std::size_t kPlaces>
struct ScaleMemory {
  alignas(64) std::uint8_t code[kPlaces];
  alignas(64) float scale[kPlaces];
  alignas(64) std::uint32_t floor[kPlaces];
  alignas(64) float multiplier[kPlaces];

  MicroScales From(std::size_t i) { return {code + i, scale + i, floor + i, multiplier + i}; }
};

/// Patterns of amaxes, of any type.
template <std::size_t kPlaces>
struct alignas(64) AmaxMemory {
  std::byte pattern[kPlaces * sizeof(float)];
};

/// Copies in pieces of constant size: a call of std::memcpy for so few bytes takes longer.
void CopyScales(const std::uint8_t* from, std::size_t count, std::byte* to) {
  for (; count >= 16; count -= 16, from += 16, to += 16) std::memcpy(to, from, 16);
  for (; count >= 4; count -= 4, from += 4, to += 4) std::memcpy(to, from, 4);
  for (; count > 0; --count) *to++ = static_cast<std::byte>(*from++);
}

/// Stores scales of `lines` lines (or of `blocks` blocks of one line) from (line, block) on.
void StoreScales(const DirectionBuffers<std::byte>& out, std::size_t line, std::size_t lines,
                 std::size_t block, std::size_t blocks, const std::uint8_t* codes) {
  const ScaleStrides& strides = out.strides;
  std::byte* first = out.scale_inv + strides.LineOffset(line) + strides.BlockOffset(block);
  if (lines == 1 ? strides.BlocksAreAdjacent() : strides.LinesAreAdjacent()) {
    return CopyScales(codes, lines * blocks, first);
  }
  for (std::size_t i = 0; i < lines * blocks; ++i) {
    const std::size_t at = strides.LineOffset(lines == 1 ? line : line + i) +
                           strides.BlockOffset(lines == 1 ? block + i : block);
    out.scale_inv[at] = static_cast<std::byte>(codes[i]);
  }
}

static_assert(kMicroBlock == kMxBlock);

class MxDriver {
 public:
  MxDriver(const QuantizeArgs& args, const MicroKernels& micro, const MxKernels& kernels)
      : args_(args), micro_(micro), kernels_(kernels) {}
  ~MxDriver() {
    if (args_.nontemporal) hwy::FlushStream();
  }
  MxDriver(const MxDriver&) = delete;
  MxDriver& operator=(const MxDriver&) = delete;

  /// Quantizes rows, in batches: amaxes, scales and codes of kMicroBlocks blocks, so that the
  /// latency from the last load to the first code is paid once for many items.
  void Rows(const Tile& tile) {
    constexpr std::size_t kCols = kMicroBlocks * kMicroBlock;
    const std::size_t ahead = std::min(kCols, tile.col_end - tile.col_begin);
    for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
      for (std::size_t col = tile.col_begin, cols; col < tile.col_end; col += cols) {
        cols = std::min(kCols, tile.col_end - col);
        const std::byte* next = Next(row, col + ahead, 1);
        const DirectionBuffers<std::byte>& out = args_.rowwise;
        std::byte* codes = out.codes + row * out.code_stride + col;
        const std::size_t whole = cols / kMicroBlock * kMicroBlock;
        if (whole > 0) {
          cols = whole;
          Batch({Item(row, col), next, codes, args_.nontemporal}, row, col, cols);
        } else {
          ShortBlock(row, col, cols, codes);
        }
      }
    }
  }

  /// Quantizes columns, in panels of one block's rows: amaxes of columns, scales, then codes row by
  /// row.
  void Columns(const Tile& tile) {
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kMicroBlock) {
      for (std::size_t col = tile.col_begin, cols; col < tile.col_end; col += cols) {
        cols = std::min(kMicroCols, tile.col_end - col);
        const std::size_t whole = cols / micro_.vector_bytes * micro_.vector_bytes;
        if (whole > 0) cols = whole;
        const PanelRows rows = RowsAt(tile, row, col, col + cols, args_.columnwise);
        const auto store = [&](const std::uint8_t* codes) {
          StoreScales(args_.columnwise, col, cols, row / kMicroBlock, 1, codes);
        };
        whole > 0 ? Panel(rows, cols, args_.nontemporal, store) : NarrowPanel(rows, cols, store);
      }
    }
  }

  /// Quantizes both directions, a panel at a time, so that memory is read once.
  void Both(const Tile& tile) {
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kMicroBlock) {
      for (std::size_t col = tile.col_begin; col < tile.col_end; col += kMicroCols) {
        const Tile panel{row, std::min(row + kMicroBlock, tile.row_end), col,
                         std::min(col + kMicroCols, tile.col_end)};
        if (PanelOfBoth(panel)) continue;
        Rows(panel);
        Columns(panel);
      }
    }
  }

 private:
  const std::byte* Item(std::size_t row, std::size_t col) const {
    return args_.in.Row(row) + col * kernels_.item_bytes;
  }
  /// Returns the address to prefetch after a row's items up to `col`: the same row at `col` or, at
  /// the row's end, the row `rows` further down.
  const std::byte* Next(std::size_t row, std::size_t col, std::size_t rows) const {
    if (col < args_.shape.cols) return Item(row, col);
    return args_.in.Row(std::min(row + rows, args_.shape.rows - 1));
  }
  PanelRows RowsAt(const Tile& tile, std::size_t row, std::size_t col, std::size_t next_col,
                   const DirectionBuffers<std::byte>& out) const {
    PanelRows rows;
    rows.count = std::min(kMicroBlock, tile.row_end - row);
    for (std::size_t r = 0; r < rows.count; ++r) {
      rows.items[r] = Item(row + r, col);
      rows.next[r] = Next(row + r, next_col, kMicroBlock);
      rows.codes[r] = out.codes + (row + r) * out.code_stride + col;
    }
    return rows;
  }

  /// Calls encode(run) for a run of `count` codes: without staging if they are written in place or
  /// lines of them are, else in the first-level cache, from where whole lines are copied.
  template <class Encode>
  void Write(const MicroRun& run, std::size_t count, const Encode& encode) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(run.codes) % micro_.vector_bytes == 0;
    if (!run.nontemporal || aligned) return encode(run);
    encode(MicroRun{run.items, run.next, staged_, false});
    micro_.copy_nontemporal(staged_, count, run.codes);
  }

  void Batch(const MicroRun& run, std::size_t row, std::size_t col, std::size_t cols) {
    const std::size_t blocks = cols / kMicroBlock;
    AmaxMemory<kMicroBlocks> amaxes;
    ScaleMemory<kMicroBlocks> memory;
    const MicroScales scales = memory.From(0);
    const bool finite = kernels_.block_amax(run.items, blocks, amaxes.pattern);
    const bool simple = kernels_.block_scales(amaxes.pattern, blocks, scales) && finite;
    Write(run, cols, [&](const MicroRun& to) {
      (simple ? kernels_.encode_blocks : kernels_.encode_all_blocks)(to, blocks, scales);
    });
    StoreScales(args_.rowwise, row, 1, col / kMicroBlock, blocks, scales.code);
  }

  /// Quantizes the last block of a row, padded with zeros.
  void ShortBlock(std::size_t row, std::size_t col, std::size_t cols, std::byte* out) {
    alignas(64) std::byte items[kMicroBlock * sizeof(float)] = {};
    alignas(64) std::byte codes[kMicroBlock];
    std::memcpy(items, Item(row, col), cols * kernels_.item_bytes);
    Batch({items, items, codes, false}, row, col, kMicroBlock);
    std::memcpy(out, codes, cols);
  }

  template <class Store>
  void Panel(const PanelRows& rows, std::size_t cols, bool nontemporal, const Store& store) {
    AmaxMemory<kMicroCols> amaxes;
    ScaleMemory<kMicroCols> memory;
    const MicroScales scales = memory.From(0);
    const auto compute = [&](ColumnAmaxFn column_amax) {
      return column_amax(rows.items, rows.count, cols, AmaxRows::kOfThisCall, amaxes.pattern);
    };
    const bool finite = compute(kernels_.column_amax);
    if (!finite) compute(kernels_.column_amax_of_all);
    const bool simple = kernels_.column_scales(amaxes.pattern, cols, scales) && finite;
    const EncodeFn encode = simple ? kernels_.encode_columns : kernels_.encode_all_columns;
    for (std::size_t r = 0; r < rows.count; ++r) {
      Write({rows.items[r], rows.next[r], rows.codes[r], nontemporal}, cols,
            [&](const MicroRun& to) { encode(to, cols, scales); });
    }
    store(scales.code);
  }

  /// Quantizes fewer columns than a vector has lanes, padded with zeros.
  template <class Store>
  void NarrowPanel(const PanelRows& rows, std::size_t cols, const Store& store) {
    constexpr std::size_t kMost = 64;  // bytes of the longest vector
    alignas(64) std::byte items[kMicroBlock][kMost * sizeof(float)] = {};
    alignas(64) std::byte codes[kMicroBlock][kMost];
    PanelRows padded;
    padded.count = rows.count;
    for (std::size_t r = 0; r < rows.count; ++r) {
      std::memcpy(items[r], rows.items[r], cols * kernels_.item_bytes);
      padded.items[r] = padded.next[r] = items[r];
      padded.codes[r] = codes[r];
    }
    Panel(padded, micro_.vector_bytes, false, store);
    for (std::size_t r = 0; r < rows.count; ++r) std::memcpy(rows.codes[r], codes[r], cols);
  }

  /// Quantizes a panel of whole blocks in both directions. Returns false, before writing anything,
  /// if a block is short, an item is not finite or a scale needs the encoder for all inputs.
  bool PanelOfBoth(const Tile& panel) {
    const std::size_t cols = panel.col_end - panel.col_begin;
    if (cols % std::max(micro_.vector_bytes, kMicroBlock) != 0) return false;
    const PanelRows rows =
        RowsAt(panel, panel.row_begin, panel.col_begin, panel.col_end, args_.columnwise);
    ScaleMemory<kRowBlocks * kMicroBlock> row_memory;
    ScaleMemory<kMicroCols> column_memory;
    const MicroScales of_columns = column_memory.From(0);
    if (!ComputeScalesOfBoth(rows, cols, row_memory, of_columns)) return false;
    alignas(64) std::byte column_codes[kMicroCols];
    for (std::size_t r = 0; r < rows.count; ++r) {
      const std::size_t row = panel.row_begin + r;
      const MicroScales of_row = row_memory.From(r * kRowBlocks);
      // Rows leave directly and columns staged: lines of two runs that both bypass the caches at
      // once take twice the time.
      std::byte* to = args_.nontemporal ? column_codes : rows.codes[r];
      const DirectionBuffers<std::byte>& out = args_.rowwise;
      Write({rows.items[r], rows.next[r], out.codes + row * out.code_stride + panel.col_begin,
             args_.nontemporal},
            cols,
            [&](const MicroRun& run) { kernels_.encode_both(run, cols, of_row, of_columns, to); });
      if (args_.nontemporal) micro_.copy_nontemporal(column_codes, cols, rows.codes[r]);
      StoreScales(out, row, 1, panel.col_begin / kMicroBlock, cols / kMicroBlock, of_row.code);
    }
    StoreScales(args_.columnwise, panel.col_begin, cols, panel.row_begin / kMicroBlock, 1,
                of_columns.code);
    return true;
  }

  /// Computes the scales of rows and columns, as many rows at a time as the first-level cache
  /// holds.
  template <class RowMemory>
  bool ComputeScalesOfBoth(const PanelRows& rows, std::size_t cols, RowMemory& row_memory,
                           const MicroScales& of_columns) {
    AmaxMemory<kMicroCols> of_column;
    for (std::size_t first = 0; first < rows.count; first += kernels_.rows_per_pass) {
      const std::size_t end = std::min(first + kernels_.rows_per_pass, rows.count);
      const AmaxRows which = first == 0 ? AmaxRows::kOfThisCall : AmaxRows::kOfAllCalls;
      if (!kernels_.column_amax(rows.items + first, end - first, cols, which, of_column.pattern))
        return false;
      for (std::size_t r = first; r < end; ++r) {
        AmaxMemory<kMicroBlocks> of_blocks;
        kernels_.block_amax(rows.items[r], cols / kMicroBlock, of_blocks.pattern);
        if (!kernels_.block_scales(of_blocks.pattern, cols / kMicroBlock,
                                   row_memory.From(r * kRowBlocks)))
          return false;
      }
    }
    return kernels_.column_scales(of_column.pattern, cols, of_columns);
  }

  static constexpr std::size_t kRowBlocks = kMicroCols / kMicroBlock;  // of a panel's row

  const QuantizeArgs& args_;
  const MicroKernels& micro_;
  const MxKernels& kernels_;
  alignas(64) std::byte staged_[kMicroBlocks * kMicroBlock];
};

template <class F>
constexpr std::size_t kMicroFormat = std::is_same_v<F, E4M3> ? 0 : 1;

/// Not inlined: compiled once for all slots. Unused where no scheme of the build is one of MXFP8's.
[[maybe_unused]] __attribute__((noinline)) void Drive(const QuantizeArgs& args,
                                                      const MicroKernels& micro,
                                                      const MxKernels& kernels,
                                                      Direction direction) {
  MxDriver driver(args, micro, kernels);
  if (direction == Direction::kRowwise) return driver.Rows(args.tile);
  if (direction == Direction::kColumnwise) return driver.Columns(args.tile);
  driver.Both(args.tile);
}

/// A slot: binds the instruction set, the format and the type of the items.
template <std::size_t kTarget, class S, class T, Direction kDirection>
void Run(const QuantizeArgs& args) noexcept {
  const MicroKernels& micro = *MicroKernelsOf(kTarget);
  const auto& by_type = micro.mx[kMicroFormat<typename S::Element>];
  Drive(args, micro, by_type[static_cast<std::size_t>(kDTypeOf<T>)], kDirection);
}

template <std::size_t kTarget, class S, Direction kDirection, class... T>
constexpr ByType<QuantizeFn> Types(TypeList<T...>) {
  if constexpr (BodyOf<S>(kDirection) == Body::kMx) {
    return {&Run<kTarget, S, T, kDirection>...};
  } else {
    return {};
  }
}

template <std::size_t kTarget, class... S>
constexpr QuantizeSlots MakeTable(TypeList<S...>) {
  return {{{{Types<kTarget, S, Direction::kRowwise>(FloatTypes{}),
             Types<kTarget, S, Direction::kColumnwise>(FloatTypes{}),
             Types<kTarget, S, Direction::kBoth>(FloatTypes{})}}...}};
}

template <std::size_t... kTargets>
QuantizeSlots TableOf(std::size_t target, std::index_sequence<kTargets...>) {
  QuantizeSlots slots{};
  ((target == kTargets ? void(slots = MakeTable<kTargets>(AllSchemes{})) : void()), ...);
  return slots;
}

}  // namespace

QuantizeSlots QuantizeMxTable(std::size_t target) {
  if (MicroKernelsOf(target) == nullptr) return {};
  return TableOf(target, std::make_index_sequence<HWY_MAX_DYNAMIC_TARGETS + 2>());
}

}  // namespace narrowfloat::cpu
