// SPDX-License-Identifier: Apache-2.0
// Scheme lookup for the classes with TransformerEngine's names.
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>

#include "bindings/python/array.h"
#include "bindings/python/numpy.h"
#include "bindings/python/quantized_tensor.h"
#include "bindings/python/verbs.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/tensor/element_type.h"
#include "narrowfloat/types/float8_block_tensor.h"
#include "narrowfloat/types/float8_tensor.h"
#include "narrowfloat/types/mxfp8_tensor.h"
#include "narrowfloat/types/nvfp4_tensor.h"

namespace narrowfloat::python {
namespace {

constexpr std::array kFp8Elements = {E4M3::kName, E5M2::kName};
constexpr std::array kFp4Elements = {E2M1::kName};

/// Returns the element format of a dtype argument, which is a format's name or an ml_dtypes dtype.
/// Errors: TypeError.
std::string_view ElementOf(const nb::object& dtype, std::span<const std::string_view> elements,
                           std::string_view argument) {
  std::string name;
  if (nb::isinstance<nb::str>(dtype)) {
    name = nb::cast<std::string>(dtype);
  } else {
    try {
      name = nb::cast<std::string>(Np().dtype(dtype).attr("name"));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
    }
  }
  std::string names;
  for (const std::string_view element : elements) {
    const auto* type = std::ranges::find(kElementTypes, element, &ElementType::element);
    if (name == element || name == type->dtype) return element;
    names += fmt::format("'{}', ", element);
  }
  names.resize(names.size() - 2);
  throw nb::type_error(fmt::format("{} must be {} or the ml_dtypes type of one of them, got {}",
                                   argument, names, nb::repr(dtype).c_str())
                           .c_str());
}

std::string_view Fp8ElementOf(const nb::object& fp8_dtype) {
  return ElementOf(fp8_dtype, kFp8Elements, "fp8_dtype");
}

std::string_view NameOf(const SchemeFamily& family, std::string_view element, bool tiles) {
  return FindInFamily(family, element,
                      tiles ? FamilyBlocks::kTwoDimensional : FamilyBlocks::kOneDimensional)
      .name;
}

std::string_view PerTensorScheme(const nb::object& fp8_dtype) {
  return NameOf(kFloat8Family, Fp8ElementOf(fp8_dtype), false);
}

std::string_view MxScheme(const nb::object& fp8_dtype, bool with_2d_quantization) {
  return NameOf(kMxfp8Family, Fp8ElementOf(fp8_dtype), with_2d_quantization);
}

std::string_view BlockScheme(const nb::object& fp8_dtype, bool tiles) {
  return NameOf(kFloat8BlockFamily, Fp8ElementOf(fp8_dtype), tiles);
}

std::string_view Nvfp4Scheme(const nb::object& fp4_dtype, bool tiles) {
  return NameOf(kNvfp4Family, ElementOf(fp4_dtype, kFp4Elements, "fp4_dtype"), tiles);
}

void CheckBlocks(std::string_view quantizer, std::string_view scheme, const nb::object& shape) {
  CheckWholeBlocks("quantize", quantizer, FindScheme(scheme), ParseShape("quantize", shape));
}

}  // namespace

void RegisterNamedQuantizerRules(nb::module_& module) {
  module.def("per_tensor_scheme", &PerTensorScheme, nb::arg("fp8_dtype"),
             "Returns the name of the per-tensor scheme whose elements are of fp8_dtype.");
  module.def("mx_scheme", &MxScheme, nb::arg("fp8_dtype"), nb::arg("with_2d_quantization"),
             "Returns the name of the MXFP8 scheme whose elements are of fp8_dtype.");
  module.def("fp8_block_scheme", &BlockScheme, nb::arg("fp8_dtype"), nb::arg("tiles"),
             "Returns the name of the block-scaled FP8 scheme whose elements are of fp8_dtype.");
  module.def("nvfp4_scheme", &Nvfp4Scheme, nb::arg("fp4_dtype"), nb::arg("tiles"),
             "Returns the name of the NVFP4 scheme whose elements are of fp4_dtype.");
  module.def(
      "check_whole_blocks", &CheckBlocks, nb::arg("quantizer"), nb::arg("scheme"), nb::arg("shape"),
      "Raises ValueError unless rows and columns of shape are multiples of the scheme's block.");
}

}  // namespace narrowfloat::python
