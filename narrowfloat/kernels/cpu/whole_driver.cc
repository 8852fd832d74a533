// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "narrowfloat/kernels/cpu/drivers.h"
#include "narrowfloat/kernels/cpu/scheme_drivers.h"
#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/kernels/scalar/items.h"

namespace narrowfloat::cpu {
namespace {

class WholeDriver {
 public:
  WholeDriver(const QuantizeArgs& args, const TargetParts& parts)
      : args_(args), micro_(*parts.micro) {
    state_.tables.scale = args.tensor_scale;
    const Tile& tile = args.tile;
    if ((tile.row_end - tile.row_begin) * (tile.col_end - tile.col_begin) >= kTabulatedItems)
      kernels_.tabulate(state_.tables);
  }

  void Run() {
    args_.direction == Direction::kRowwise ? Rows() : Patches();
    if (args_.amax_out == nullptr) return;
    const auto load = ForType(args_.dtype, []<class T>() { return &LoadItem<T>; });
    *args_.amax_out = load(reinterpret_cast<const std::byte*>(&state_.largest), 0);
  }

 private:
  // Items of the smallest tile for which tables are filled. Tables save the time of filling them
  // within 4,000 items rowwise, within 16,000 columnwise.
  static constexpr std::size_t kTabulatedItems = 16384;
  static constexpr std::size_t kRunItems = 4096;  // of one call, which checks them after encoding
  // Distance of prefetches. Less than a page: a prefetch that has to look up another page's address
  // is dropped or delayed.
  static constexpr std::size_t kBytesAhead = 3584;
  // Rows of a patch that one call encodes.
  static constexpr std::size_t kRowsOfCall = 32;

  void Rows() {
    const Tile& tile = args_.tile;
    const std::size_t cols = tile.col_end - tile.col_begin, rows = tile.row_end - tile.row_begin;
    if (args_.in.IsContiguous(cols * item_bytes_) && args_.rowwise.code_stride == cols)
      return Row(tile.row_begin, rows * cols);
    for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) Row(row, cols);
  }

  /// Encodes `count` items from the tile's first column of a row on.
  void Row(std::size_t row, std::size_t count) {
    const std::size_t first = args_.tile.col_begin;
    const std::byte* items = args_.in.Row(row) + first * item_bytes_;
    std::byte* codes = args_.rowwise.codes + row * args_.rowwise.code_stride + first;
    // The first run ends where a cache line begins, so that all other runs begin at one.
    const std::size_t head = args_.nontemporal ? BytesToLine(codes) : 0;
    for (std::size_t i = 0, run_items; i < count; i += run_items) {
      run_items = std::min(i < head ? head : kRunItems, count - i);
      const std::byte* from = items + i * item_bytes_;
      // With vectors of 512 bits, prefetches of every line take more time than they save.
      const bool by_page = HasLongVectors(micro_);
      if (by_page) PrefetchPageStarts(from + kRunItems * item_bytes_, run_items * item_bytes_);
      const std::byte* next = by_page ? from : from + kBytesAhead;
      WriteRun(micro_, {from, next, codes + i, args_.nontemporal}, kLineBytes, run_items, staged_,
               [&](const MicroRun& to) { Encode({to}, run_items); });
    }
  }

  /// Encodes patches in the first-level cache and writes their transposes. For both directions,
  /// writes the rows too, while they are encoded.
  void Patches() {
    const DirectionBuffers<std::byte>& out = args_.columnwise;
    ForEachRect(args_.tile, kTransposedRun, kTransposedCols, [&](const Rect& patch) {
      for (std::size_t r = 0; r < patch.rows; r += kRowsOfCall) EncodeRows(patch, r);
      micro_.transpose(patch_, patch.rows, patch.cols,
                       out.codes + patch.col * out.code_stride + patch.row, out.code_stride,
                       args_.nontemporal);
    });
  }

  /// Encodes kRowsOfCall rows of a patch from its row `first` on, or all rows that are left.
  void EncodeRows(const Rect& patch, std::size_t first) {
    const std::size_t rows = std::min(kRowsOfCall, patch.rows - first);
    const Place items{patch.row + first, patch.col};
    const Place next = NextPiece(args_, patch, first);
    MicroRuns runs{
        {nullptr, nullptr, patch_ + first * kTransposedCols, false}, rows, 0, kTransposedCols};
    runs.pieces = kPatchesAhead;
    const bool is_even = SetItems(args_, items, next, item_bytes_, runs);
    if (args_.direction == Direction::kBoth) KeepRows(args_, items, runs);
    if (is_even) return Encode(runs, patch.cols);
    for (std::size_t r = 0; r < rows; ++r)
      Encode({RunOf(args_, items, next, item_bytes_, runs, r)}, patch.cols);
  }

  void Encode(const MicroRuns& runs, std::size_t count) { kernels_.encode(runs, count, state_); }

  const QuantizeArgs& args_;
  const MicroKernels& micro_;
  const UniformKernels& kernels_ =
      Of(micro_.formats[kSchemeDrivers[args_.scheme].format], args_.dtype).uniform;
  const std::size_t item_bytes_ = ItemSize(args_.dtype);
  UniformState state_;
  alignas(64) std::byte staged_[kRunItems];
  alignas(64) std::byte patch_[kTransposedRun * kTransposedCols];
};

}  // namespace

void DriveWhole(const QuantizeArgs& args, const TargetParts& parts) noexcept {
  WholeDriver(args, parts).Run();
}

}  // namespace narrowfloat::cpu
