// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/execution.h"
#include "narrowfloat/ops/input.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/ops/shared_amax.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Quantize in its parts, for a verb that has more to do with a tile while it is in the cache:
/// the constructor checks, then Begin, QuantizeTile for each tile, End.
class QuantizeRun {
 public:
  /// Errors: as Quantize; `verb` begins the messages. Keeps references to all three.
  QuantizeRun(const char* verb, const ConstTensorView& in, const QuantizedView& out,
              const Execution& execution);

  const KernelTable& kernels() const { return kernels_; }
  const Rows<const std::byte>& rows() const { return rows_; }
  /// Tiles have corners that are multiples of these.
  std::size_t RowUnit() const;
  std::size_t ColUnit() const;

  /// Whether Begin would read the whole input for its amax.
  bool AsksForAmax() const;
  /// Finds the amaxes that the scales follow from; writes them, the scale of a whole tensor, and
  /// padding. `amax` is the input's if that is known.
  void Begin(std::optional<float> amax = std::nullopt);
  /// May be called for several tiles at once.
  void QuantizeTile(const Tile& tile);
  /// All of them.
  void QuantizeTiles();
  /// Writes what was found on the way.
  void End();

 private:
  /// The tiles that suit quantization alone.
  TileGrid Grid() const { return MakeTileGrid(rows_.shape, RowUnit(), ColUnit()); }
  QuantizeFn Slot(Direction direction) const;
  /// Where the columnwise operand is another matrix, one of its tiles.
  bool Transforms() const { return spec_.rht && spec_.columnwise; }
  MatrixRows<const std::byte> Transform(const Tile& tile) const;
  float TransformedAmax() const;
  void PrepareAmaxes(std::optional<float> known);

  const ConstTensorView& in_;
  const QuantizedView& out_;
  const Execution& execution_;
  const QuantSpec& spec_;
  const KernelTable& kernels_;
  Rows<const std::byte> rows_;
  QuantizeArgs args_{};
  bool measures_ = false;  // the amax is only reported: it is found on the way
  SharedAmax measured_;
};

}  // namespace narrowfloat
