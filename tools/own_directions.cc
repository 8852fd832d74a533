// SPDX-License-Identifier: Apache-2.0
#include "tools/own_directions.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "tools/tensor_values.h"

namespace narrowfloat::tools {
namespace {

std::optional<std::size_t> FindEntry(const io::StoredTensor& tensor, Role role) {
  const auto at = std::ranges::find(tensor.plan, role, &BufferPlan::role);
  if (at == tensor.plan.end()) return std::nullopt;
  return static_cast<std::size_t>(at - tensor.plan.begin());
}

/// Returns the form of the codes' stored matrix and its blocks. With `is_turned`, each of its rows
/// is a line with scales; otherwise each column is.
io::ForeignWeight FormOf(const io::StoredTensor& tensor, Direction direction, bool is_turned) {
  const SchemeInfo& scheme = *tensor.quantized->spec.scheme;
  const MatrixShape matrix = FlattenShape(tensor.shape());
  io::ForeignWeight form{.codes = io::FileDTypeOfCodes(scheme),
                         .scale = io::FileDTypeOfScales(scheme.layout.scale_type),
                         .rows = matrix.rows,
                         .cols = matrix.cols};
  if (direction == Direction::kColumnwise && is_turned) std::swap(form.rows, form.cols);
  form.block = {scheme.layout.lines_per_scale, scheme.block.cols};
  if (!is_turned) std::swap(form.block.rows, form.block.cols);
  if (scheme.HasOneScale()) form.block = io::WholeBlock({form.rows, form.cols});
  return form;
}

/// Returns the scales without padding, in the order of the stored matrix's blocks, row by row.
std::vector<std::byte> CompactScales(const io::StoredTensor& tensor, Direction direction,
                                     bool is_turned, std::span<const std::byte> in) {
  const QuantSpec& spec = tensor.quantized->spec;
  const ScaleGrid grid = MakeScaleGrid(*spec.scheme, direction, FlattenShape(tensor.shape()));
  const ScaleStrides strides =
      MakeScaleStrides(grid, spec.swizzled ? ScalePlacement::kSwizzled : ScalePlacement::kCompact);
  const std::size_t item = io::Info(io::FileDTypeOfScales(spec.scheme->layout.scale_type)).bits / 8;
  std::vector<std::byte> out(grid.lines * grid.blocks * item);
  if (out.empty()) return out;  // an empty tensor may have any number of lines
  for (std::size_t line = 0; line < grid.lines; ++line) {
    for (std::size_t block = 0; block < grid.blocks; ++block) {
      const std::size_t from = strides.LineOffset(line) + strides.BlockOffset(block);
      const std::size_t to = is_turned ? line * grid.blocks + block : block * grid.lines + line;
      std::memcpy(out.data() + to * item, in.data() + from * item, item);
    }
  }
  return out;
}

/// Returns the scales of the whole tensor, or of each row, computed from the amaxes.
std::vector<float> GlobalsOf(const QuantSpec& spec, std::span<const std::byte> amaxes) {
  std::vector<float> globals = ItemsOf<float>(amaxes);
  for (float& global : globals) global = io::GlobalOfAmax(global, spec.e4m3_max);
  return globals;
}

}  // namespace

std::vector<OwnDirection> DirectionsOf(const io::StoredTensor& tensor,
                                       const std::vector<std::span<const std::byte>>& input) {
  const QuantSpec& spec = tensor.quantized->spec;
  std::vector<OwnDirection> directions;
  for (const auto direction : {Direction::kRowwise, Direction::kColumnwise}) {
    const bool rowwise = direction == Direction::kRowwise;
    const auto codes = FindEntry(tensor, rowwise ? Role::kRowwiseData : Role::kColumnwiseData);
    if (!codes) continue;
    auto scale = FindEntry(tensor, rowwise ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv);
    if (!scale) scale = FindEntry(tensor, Role::kRowwiseScaleInv);  // one for both directions
    const bool is_turned = rowwise || spec.scheme->layout.columnwise_transposed;
    io::CanonicalWeight weight{
        .form = FormOf(tensor, direction, is_turned),
        .codes = input[*codes],
        .scales = CompactScales(tensor, direction, is_turned, input[scale.value()])};
    const auto amax = FindEntry(tensor, rowwise ? Role::kAmaxRowwise : Role::kAmaxColumnwise);
    if (amax && spec.scheme->layout.scale_type == ScaleType::kE4M3) {
      weight.form.global = io::GlobalScale::kMultiplies;
      weight.globals = GlobalsOf(spec, input[*amax]);
    }
    directions.push_back({direction, std::move(weight)});
  }
  return directions;
}

}  // namespace narrowfloat::tools
