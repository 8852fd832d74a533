// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/cpu/atomic_amax.h"
#include "narrowfloat/ops/cpu/strided_rows.h"
#include "narrowfloat/ops/cpu/tiles.h"
#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Quantize in steps, for a verb that also processes a tile while it is in the cache: Prepare,
/// QuantizeTile for each tile, QuantizeTiles for the passes after the first one, Finish.
class QuantizeRun {
 public:
  /// Keeps references to the arguments. Requires: arguments as for Backend::Quantize. Errors: as
  /// ThreadCount, before anything is written.
  QuantizeRun(const ConstTensorView& in, const QuantizedView& out, const Execution& execution);

  const StridedRows<const std::byte>& rows() const { return rows_; }
  /// Returns the units of the first pass: tile corners must be multiples of them.
  std::size_t RowUnit() const;
  std::size_t ColUnit() const;

  /// Returns true if Prepare would read the whole input to find the tensor's amax. Amaxes of lines
  /// and of the transform do not count.
  bool NeedsAmaxPass() const;
  /// Computes the amaxes that the scales depend on; writes them, the scale of a whole tensor, and
  /// the padding. `amax` is the input's, if known.
  void Prepare(std::optional<float> amax = std::nullopt);
  /// Runs the first pass on one tile. Thread-safe for different tiles.
  void QuantizeTile(const Tile& tile);
  /// Runs the passes from index `first_pass` on, on all tiles.
  void QuantizeTiles(std::size_t first_pass = 0);
  /// Writes the amax that was measured during quantization.
  void Finish();

 private:
  /// Returns the directions of the passes: one pass for both, or one for each.
  std::span<const Direction> Passes() const;
  std::size_t RowUnit(Direction direction) const;
  /// Returns true if rowwise codes may be written by patches of transposed codes: they fill cache
  /// lines, or stores are not non-temporal. True without transposed codes.
  bool RowsFillLines() const;
  /// Returns true if drivers keep transposed codes in a buffer until these fill cache lines.
  bool HoldsLines(Direction direction) const;
  /// Returns true if runs of codes begin inside cache lines and no block begins at a line's start,
  /// so that tiles cannot begin there.
  bool CutsLines(const DirectionBuffers<std::byte>& codes) const;
  /// Returns true if codes are written with non-temporal stores.
  bool BypassesCaches() const;
  /// Returns the best tiles for one pass.
  TileGrid Grid(Direction direction) const;
  void QuantizeTile(const Tile& tile, Direction direction);
  /// Returns true if the columnwise direction quantizes the input's Hadamard transform.
  bool UsesHadamard() const { return spec_.rht && spec_.columnwise; }
  std::uint32_t SignMask() const { return static_cast<std::uint32_t>(spec_.rht_sign_mask); }
  void PrepareAmaxes(std::optional<float> known);

  const ConstTensorView& in_;
  const QuantizedView& out_;
  const Execution& execution_;
  const QuantSpec& spec_;
  const KernelTable& kernels_;
  StridedRows<const std::byte> rows_;
  QuantizeArgs args_{};
  bool measures_ = false;  // the amax is an output only, measured during quantization
  AtomicAmax measured_;
};

}  // namespace narrowfloat
