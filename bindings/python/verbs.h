// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace narrowfloat::python {

namespace nb = nanobind;

struct QuantizedTensor;

/// Implements narrowfloat.dequantize, and the method of that name.
nb::object DequantizeTensor(const QuantizedTensor& tensor, const nb::object& dtype,
                            const nb::object& out, const nb::kwargs& options);

void RegisterVerbs(nb::module_& module);
void RegisterGroups(nb::module_& module);
void RegisterDelayedScale(nb::module_& module);
void RegisterQgemm(nb::module_& module);
void RegisterNamedQuantizerRules(nb::module_& module);
void RegisterCheckpoint(nb::module_& module);
void RegisterSaving(nb::module_& module);
void RegisterXla(nb::module_& module);
void RegisterTorchTensors(nb::module_& module);

}  // namespace narrowfloat::python
