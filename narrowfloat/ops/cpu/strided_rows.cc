// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/strided_rows.h"

#include "narrowfloat/ops/view_checks.h"

namespace narrowfloat {
namespace {

using Strides = std::vector<std::ptrdiff_t>;

void FillOffsets(const Shape& shape, const Strides& strides, std::size_t rows, Strides& offsets) {
  offsets.reserve(rows);
  std::vector<std::int64_t> index(shape.size() - 1, 0);
  std::ptrdiff_t offset = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    offsets.push_back(offset);
    for (std::size_t i = index.size(); i-- > 0;) {
      offset += strides[i];
      if (++index[i] < shape[i]) break;
      offset -= strides[i] * shape[i];
      index[i] = 0;
    }
  }
}

}  // namespace

template <class Byte>
StridedRows<Byte>::StridedRows(const BasicTensorView<Byte>& view)
    : shape(FlattenShape(view.shape)) {
  if (shape.Size() == 0) return;
  matrix.data = view.data;
  if (const auto stride = RowStride(view)) {
    matrix.row_stride = *stride;
    return;
  }
  FillOffsets(view.shape, view.strides, shape.rows, offsets);
  matrix.row_offsets = offsets.data();
}

template struct StridedRows<std::byte>;
template struct StridedRows<const std::byte>;

}  // namespace narrowfloat
