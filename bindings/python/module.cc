// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/python/numpy.h"
#include "bindings/python/quantized_tensor.h"
#include "bindings/python/verbs.h"
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/schemes/registry.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::python {
namespace {

std::vector<std::string> SchemeNames() {
  std::vector<std::string> names;
  for (const SchemeInfo& scheme : kSchemes) names.emplace_back(scheme.name);
  return names;
}

std::vector<std::string> BackendNames() {
  std::vector<std::string> names;
  for (const KernelTable* kernels : AvailableKernels()) names.emplace_back(kernels->name);
  return names;
}

/// Raises a Python exception. Paths in its text may not be UTF-8: writes their other bytes as \xNN.
void SetError(PyObject* type, const std::exception& error) {
  const std::string_view text = error.what();
  PyObject* message =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (message == nullptr) return;  // the failed call has set its own error
  PyErr_SetObject(type, message);
  Py_DECREF(message);
}

void TranslateError(const std::exception_ptr& pointer, void* /*payload*/) {
  try {
    std::rethrow_exception(pointer);
  } catch (const InvalidArgument& error) {
    SetError(PyExc_ValueError, error);
  } catch (const Unsupported& error) {
    SetError(PyExc_NotImplementedError, error);
  } catch (const DeviceError& error) {
    SetError(PyExc_RuntimeError, error);
  } catch (const IoError& error) {
    SetError(PyExc_OSError, error);
  }
}

}  // namespace

NB_MODULE(_core, module) {
  LoadNumPy();
  nb::register_exception_translator(&TranslateError);
  module.doc() = "The compiled half of narrowfloat; use the names that narrowfloat exports.";
  module.attr("__version__") = NF_VERSION;
  module.attr("E2M1_MAX") = kMaxValue<E2M1>;
  module.attr("E4M3_MAX") = kMaxValue<E4M3>;
  module.attr("E5M2_MAX") = kMaxValue<E5M2>;
  module.def("schemes", &SchemeNames,
             "Returns the names of all schemes, as quantize() takes them.");
  module.def("backends", &BackendNames,
             "Returns the kernel tables that this machine can run, best first; NF_FORCE_BACKEND "
             "picks one.");
  RegisterQuantizedTensor(module);
  RegisterVerbs(module);
  RegisterGroups(module);
  RegisterDelayedScale(module);
  RegisterQgemm(module);
  RegisterNamedQuantizerRules(module);
  RegisterCheckpoint(module);
  RegisterSaving(module);
  RegisterXla(module);
  RegisterTorchTensors(module);
}

}  // namespace narrowfloat::python
