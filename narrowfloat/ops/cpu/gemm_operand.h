// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "narrowfloat/kernels/gemm_kernels.h"
#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Layout of a panel of values: distances, in floats, between lines and between positions.
struct PanelSteps {
  std::size_t line, pos;
};

/// An operand of a matrix product as numbers: `lines` of `length` items, summed along the line. A
/// slab is a fixed number of adjacent items of a line that share one scale.
class GemmOperand {
 public:
  GemmOperand(std::size_t line_count, std::size_t item_count, std::size_t slab_items)
      : lines(line_count), length(item_count), slab(slab_items) {}
  virtual ~GemmOperand() = default;
  GemmOperand(const GemmOperand&) = delete;
  GemmOperand& operator=(const GemmOperand&) = delete;

  /// Writes the decoded codes of `range`, not scaled: exact in fp32.
  virtual void Values(const LineRange& range, PanelSteps steps, float* out) const noexcept = 0;
  /// Writes the decoded scales of one slab, one for each of the lines.
  virtual void Scales(std::size_t line_begin, std::size_t line_end, std::size_t slab_index,
                      float* out) const noexcept = 0;

  const std::size_t lines, length, slab;
};

/// An operand with codes in memory that micro-kernels can read directly.
class StoredOperand : public GemmOperand {
 public:
  StoredOperand(std::size_t line_count, std::size_t item_count, std::size_t slab_items,
                OperandCodes operand_codes, std::size_t element_index, int bits)
      : GemmOperand(line_count, item_count, slab_items),
        stored(operand_codes),
        element(element_index),
        element_bits(bits) {}

  const OperandCodes stored;
  const std::size_t element;  // in ElementFormats
  const int element_bits;
};

/// Codes and scales of one direction of a quantized tensor.
struct OperandSource {
  DirectionBuffers<const std::byte> buffers;
  std::size_t lines, length;
  bool positions_are_adjacent;  // the codes of a line are adjacent; else the codes of a position
  ScaleOptions options;
  std::vector<float> amaxes;  // inputs of Prepare: of the tensor, or one per line
};

template <Scheme S>
class SchemeOperand final : public StoredOperand {
 public:
  explicit SchemeOperand(OperandSource source)
      : StoredOperand(
            source.lines, source.length, WholeTensorScheme<S> ? source.length : S::kBlock.cols,
            {source.buffers.codes, source.buffers.code_stride, source.positions_are_adjacent},
            IndexIn<typename S::Element>(ElementFormats{}), kBits<typename S::Element>),
        source_(std::move(source)) {
    if constexpr (kHasTable) {
      const typename S::TensorState state = S::Prepare(AmaxOf(0), source_.options);
      for (std::uint32_t code = 0; code < decoded_.size(); ++code)
        decoded_[code] = S::DecodeScale(code, state);
    }
  }

  void Values(const LineRange& range, PanelSteps steps, float* out) const noexcept override {
    // Reads codes in the order of memory: a stored row is a line, or one position of all lines.
    const bool rows_are_lines = source_.positions_are_adjacent;
    const std::size_t row_begin = rows_are_lines ? range.line_begin : range.pos_begin;
    const std::size_t row_end = rows_are_lines ? range.line_end : range.pos_end;
    const std::size_t begin = rows_are_lines ? range.pos_begin : range.line_begin;
    const std::size_t end = rows_are_lines ? range.pos_end : range.line_end;
    const std::size_t row_step = rows_are_lines ? steps.line : steps.pos;
    const std::size_t step = rows_are_lines ? steps.pos : steps.line;
    for (std::size_t row = row_begin; row < row_end; ++row, out += row_step) {
      const std::byte* codes = source_.buffers.codes + row * source_.buffers.code_stride;
      for (std::size_t i = begin; i < end; ++i) {
        out[(i - begin) * step] = kValues[LoadCode<typename S::Element>(codes, i)];
      }
    }
  }

  void Scales(std::size_t line_begin, std::size_t line_end, std::size_t slab_index,
              float* out) const noexcept override {
    const DirectionBuffers<const std::byte>& buffers = source_.buffers;
    const std::size_t block = WholeTensorScheme<S> ? 0 : buffers.strides.BlockOffset(slab_index);
    const bool amax_of_line = source_.amaxes.size() > 1;
    typename S::TensorState state{};
    if (!kHasTable) state = S::Prepare(AmaxOf(0), source_.options);
    for (std::size_t line = line_begin; line < line_end; ++line) {
      const std::size_t item = buffers.strides.LineOffset(ScaleLine<S>(line)) + block;
      const std::uint32_t scale_inv = LoadScaleInv<S>(buffers.scale_inv, item);
      if (kHasTable && !amax_of_line) {
        *out++ = decoded_[scale_inv];
        continue;
      }
      if (amax_of_line) state = S::Prepare(AmaxOf(line), source_.options);
      *out++ = S::DecodeScale(scale_inv, state);
    }
  }

 private:
  static constexpr std::size_t kCodes = std::size_t{1} << kBits<typename S::Element>;
  static constexpr auto kValues = [] {
    std::array<float, kCodes> values{};
    for (std::uint32_t code = 0; code < kCodes; ++code)
      values[code] = Decode<typename S::Element>(code);
    return values;
  }();

  float AmaxOf(std::size_t line) const noexcept {
    return source_.amaxes.empty() ? 0.0f : source_.amaxes[line];
  }

  // Decodes all 256 scale codes once, under the tensor's amax: a product decodes millions.
  static constexpr bool kHasTable = kScaleBytes<S> == 1;

  OperandSource source_;
  std::array<float, kHasTable ? 256 : 0> decoded_{};
};

/// Returns the amaxes that decoding one direction needs: none, one, or one per line.
std::vector<float> LoadAmaxes(const ConstQuantizedView& view, Direction direction);

/// Returns the operand for one direction of `view`. Lines are rows, summed along the columns, for
/// rowwise buffers, and columns, summed along the rows, for columnwise ones.
/// Requires: CheckDirection accepts the view.
std::unique_ptr<StoredOperand> MakeGemmOperand(const ConstQuantizedView& view, Direction direction);

}  // namespace narrowfloat
