// SPDX-License-Identifier: Apache-2.0
// Facts that a tracing framework needs before a result exists: shapes, dtypes and the numbers of
// attributes. The JAX package reads them here and has no copy.
#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bindings/ffi/attributes.h"
#include "bindings/python/numpy.h"
#include "bindings/python/quantized_tensor.h"
#include "bindings/python/verbs.h"
#include "narrowfloat/numerics/hadamard.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/layout.h"

namespace narrowfloat::python {
namespace {

std::string DTypeOfElement(std::string_view element) {
  return std::string(std::ranges::find(kElementTypes, element, &ElementType::element)->dtype);
}

/// Returns the element format of that dtype; returns an unknown name unchanged, for the message.
std::string_view ElementOfDType(std::string_view dtype) {
  const auto* found = std::ranges::find(kElementTypes, dtype, &ElementType::dtype);
  return found == std::end(kElementTypes) ? dtype : found->element;
}

template <class Enum, std::size_t kCount>
nb::dict EnumDict(const xla_ffi::NamedValue<Enum> (&values)[kCount]) {
  nb::dict dict;
  for (const auto& [name, value] : values)
    dict[nb::str(name.data(), name.size())] = static_cast<std::int64_t>(value);
  return dict;
}

std::vector<std::string> DTypesOfMode(std::int64_t scaling_mode) {
  std::vector<std::string> dtypes;
  for (const SchemeInfo* scheme :
       xla_ffi::SchemesOf(static_cast<xla_ffi::ScalingMode>(scaling_mode)))
    dtypes.push_back(DTypeOfElement(scheme->element));
  return dtypes;
}

std::string_view SchemeOfMode(std::int64_t scaling_mode, std::string_view dtype) {
  return xla_ffi::SchemeOf("quantize", static_cast<xla_ffi::ScalingMode>(scaling_mode),
                           ElementOfDType(dtype))
      .name;
}

std::pair<std::size_t, std::size_t> BlockOf(std::string_view scheme) {
  const BlockShape block = FindScheme(scheme).block;
  return {block.rows, block.cols};
}

std::string_view ScaleDTypeOf(std::string_view scheme) {
  return xla_ffi::ScaleDType(FindScheme(scheme));
}

bool AreSchemesOfOneFamily(std::string_view first, std::string_view second) {
  return AreOfOneFamily(FindScheme(first), FindScheme(second));
}

bool IsColumnwiseTransposed(std::string_view scheme) {
  return FindScheme(scheme).layout.columnwise_transposed;
}

using Extents = std::pair<std::size_t, std::size_t>;

/// Returns the shapes of the scales of a rows x cols matrix: without padding, and as stored.
std::pair<Extents, Extents> ScaleShapes(std::string_view name, std::size_t rows, std::size_t cols,
                                        bool columnwise) {
  const ScaleGrid grid =
      MakeScaleGrid(FindScheme(name), columnwise ? Direction::kColumnwise : Direction::kRowwise,
                    MatrixShape{rows, cols});
  const auto extents = [](MatrixShape shape) { return Extents{shape.rows, shape.cols}; };
  return {extents(ContentShape(grid)), extents(grid.StoredShape())};
}

nb::tuple WorkspaceSizes(std::size_t batch_size, std::size_t hidden_size, std::int64_t in_dtype,
                         std::int64_t out_dtype, std::int64_t scale_dtype,
                         std::int64_t scaling_mode, std::int64_t q_layout) {
  const auto dtype = [](std::int64_t number) { return static_cast<xla_ffi::CoreDType>(number); };
  const xla_ffi::WorkspaceSize size = xla_ffi::GetDBiasQuantizeWorkspaceSizes(
      batch_size, hidden_size, dtype(in_dtype), dtype(out_dtype), dtype(scale_dtype),
      static_cast<JAXX_Scaling_Mode>(scaling_mode), static_cast<JAXX_Quantize_Layout>(q_layout));
  return nb::make_tuple(nb::make_tuple(size.shape, static_cast<std::int64_t>(size.dtype)));
}

}  // namespace

void RegisterXla(nb::module_& module) {
  module.attr("JAXX_Scaling_Mode") = EnumDict(xla_ffi::kScalingModes);
  module.attr("JAXX_Quantize_Layout") = EnumDict(xla_ffi::kQuantizeLayouts);
  nb::dict element_dtypes;
  for (const auto& [element, dtype] : kElementTypes)
    element_dtypes[nb::str(element.data(), element.size())] = nb::str(dtype.data(), dtype.size());
  module.attr("ELEMENT_DTYPES") = element_dtypes;
  module.attr("HADAMARD_SIZE") = kHadamardSize;
  module.attr("HADAMARD_SIGN_MASK") = kHadamardSignMask;
  module.def(
      "dtypes_of_mode", &DTypesOfMode, nb::arg("scaling_mode"),
      "Returns the names of the dtypes of codes that a scaling mode makes; none for NO_SCALING.");
  module.def("scheme_of_mode", &SchemeOfMode, nb::arg("scaling_mode"), nb::arg("dtype"),
             "Returns the name of the scheme of a scaling mode whose codes are of that dtype.");
  module.def("block_of", &BlockOf, nb::arg("scheme"),
             "Returns rows and columns of a scheme's block; zeros where it is the whole tensor.");
  module.def("scale_dtype_of", &ScaleDTypeOf, nb::arg("scheme"),
             "Returns the name of the dtype of a scheme's stored scales.");
  module.def("are_of_one_family", &AreSchemesOfOneFamily, nb::arg("first"), nb::arg("second"),
             "Returns whether tensors of two schemes can be multiplied as codes.");
  module.def("is_columnwise_transposed", &IsColumnwiseTransposed, nb::arg("scheme"),
             "Returns whether columnwise codes lie transposed.");
  module.def("scale_shapes", &ScaleShapes, nb::arg("scheme"), nb::arg("rows"), nb::arg("cols"),
             nb::arg("columnwise"),
             "Returns the shapes of the scales of a rows x cols matrix: with content, and stored.");
  module.def(
      "get_dbias_quantize_workspace_sizes", &WorkspaceSizes, nb::arg("batch_size"),
      nb::arg("hidden_size"), nb::arg("in_dtype"), nb::arg("out_dtype"), nb::arg("scale_dtype"),
      nb::arg("scaling_mode"), nb::arg("q_layout"),
      "Returns ((shape, dtype),) of the workspace that te_dbias_quantize_ffi is best given.");
}

}  // namespace narrowfloat::python
