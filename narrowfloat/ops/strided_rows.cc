// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/strided_rows.h"

#include <fmt/format.h>

#include <functional>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

using Strides = std::vector<std::ptrdiff_t>;

/// Returns the distance between rows, if it is constant.
bool UniformStride(const Shape& shape, const Strides& strides, std::ptrdiff_t& row_stride) {
  row_stride = 0;
  std::ptrdiff_t expected = 0;
  bool first = true;
  for (std::size_t i = shape.size() - 1; i-- > 0;) {
    if (shape[i] == 1) continue;
    if (first) {
      row_stride = strides[i];
    } else if (strides[i] != expected) {
      return false;
    }
    first = false;
    expected = strides[i] * shape[i];
  }
  return true;
}

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
void FillRows(const char* verb, const char* name, const BasicTensorView<Byte>& view,
              StridedRows<Byte>& rows) {
  if (!IsFloat(view.dtype)) {
    throw InvalidArgument(fmt::format("{}: {} must be float32, float16 or bfloat16, got {}", verb,
                                      name, DTypeName(view.dtype)));
  }
  if (view.device != Device::kCpu) {
    throw Unsupported(
        fmt::format("{}: {} must be in CPU memory, got memory of another device", verb, name));
  }
  rows.shape = FlattenShape(view.shape);
  const Strides& strides = view.strides;
  const bool dense = strides.empty();
  if (!dense && strides.size() != view.shape.size()) {
    throw InvalidArgument(fmt::format("{}: {} must have one stride per dimension, got {} for {}",
                                      verb, name, strides.size(), view.shape.size()));
  }
  if (rows.shape.Size() == 0) return;
  if (view.data == nullptr) {
    throw InvalidArgument(
        fmt::format("{}: {} must have data for its elements, got a null pointer", verb, name));
  }
  const auto item = static_cast<std::ptrdiff_t>(ItemSize(view.dtype));
  if (!dense && rows.shape.cols > 1 && strides.back() != item) {
    throw InvalidArgument(fmt::format(
        "{}: {} must have adjacent items in its last dimension, got a stride of {} bytes", verb,
        name, strides.back()));
  }
  rows.matrix.data = view.data;
  if (view.shape.size() < 2) return;
  if (dense) {
    rows.matrix.row_stride = static_cast<std::ptrdiff_t>(rows.shape.cols) * item;
    return;
  }
  if (UniformStride(view.shape, strides, rows.matrix.row_stride)) return;
  FillOffsets(view.shape, strides, rows.shape.rows, rows.offsets);
  rows.matrix.row_offsets = rows.offsets.data();
}

template void FillRows(const char*, const char*, const TensorView&, StridedRows<std::byte>&);
template void FillRows(const char*, const char*, const ConstTensorView&,
                       StridedRows<const std::byte>&);

template <class Byte>
Extent ExtentOf(const BasicTensorView<Byte>& view) {
  if (view.data == nullptr) return {};
  const std::size_t items = FlattenShape(view.shape).Size();
  if (items == 0) return {};
  const std::size_t item = ItemSize(view.dtype);
  if (view.strides.empty()) return {view.data, view.data + items * item};
  std::ptrdiff_t low = 0, high = static_cast<std::ptrdiff_t>(item);
  for (std::size_t i = 0; i < view.strides.size(); ++i) {
    const std::ptrdiff_t reach = view.strides[i] * (view.shape[i] - 1);
    (reach < 0 ? low : high) += reach;
  }
  return {view.data + low, view.data + high};
}

template Extent ExtentOf(const TensorView&);
template Extent ExtentOf(const ConstTensorView&);

void RefuseOverlap(std::string_view verb, std::string_view a, std::string_view b) {
  throw InvalidArgument(fmt::format("{}: {} must not overlap {}", verb, a, b));
}

void CheckDisjoint(std::string_view verb, std::string_view a_name, const Extent& a,
                   std::string_view b_name, const Extent& b) {
  if (a.Overlaps(b)) RefuseOverlap(verb, a_name, b_name);
}

template <class Byte>
bool IsContiguous(const BasicTensorView<Byte>& view) {
  if (view.strides.empty()) return true;
  if (view.strides.size() != view.shape.size()) return false;
  auto step = static_cast<std::ptrdiff_t>(ItemSize(view.dtype));
  for (std::size_t i = view.shape.size(); i-- > 0;) {
    if (view.shape[i] == 0) return true;
    if (view.shape[i] > 1 && view.strides[i] != step) return false;
    step *= view.shape[i];
  }
  return true;
}

template bool IsContiguous(const TensorView&);
template bool IsContiguous(const ConstTensorView&);

}  // namespace narrowfloat
