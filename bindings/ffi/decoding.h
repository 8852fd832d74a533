// SPDX-License-Identifier: Apache-2.0
// Attributes of enumerations, and exported symbols.
#pragma once

#include "bindings/ffi/attributes.h"
#include "bindings/ffi/platform.h"
#include "xla/ffi/api/ffi.h"

XLA_FFI_REGISTER_ENUM_ATTR_DECODING(JAXX_Scaling_Mode);
XLA_FFI_REGISTER_ENUM_ATTR_DECODING(JAXX_Quantize_Layout);

/// Exports a handler: XLA_FFI_DEFINE_HANDLER_SYMBOL sets no visibility, and the default is hidden.
#define NF_EXPORT_HANDLER(symbol, function, ...)                                               \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* symbol(XLA_FFI_CallFrame*); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, function, __VA_ARGS__)

/// Exports a handler for each platform of the build. `binding` has all arguments but the platform,
/// which is the last argument of `function`. Further arguments of the macro are traits on CUDA.
///
/// Calls that allocate memory have no trait: XLA records a call with a trait in a graph that
/// becomes a part of another graph, and CUDA rejects such a graph if it allocates.
#ifdef NF_CUDA
#define NF_EXPORT_HANDLERS(symbol, function, binding, ...)                             \
  NF_EXPORT_HANDLER(symbol, function, (binding).Ctx<::narrowfloat::xla_ffi::OnCpu>()); \
  NF_EXPORT_HANDLER(symbol##_cuda, function,                                           \
                    (binding).Ctx<::narrowfloat::xla_ffi::OnCuda>() __VA_OPT__(, ) __VA_ARGS__)
#else
#define NF_EXPORT_HANDLERS(symbol, function, binding, ...) \
  NF_EXPORT_HANDLER(symbol, function, (binding).Ctx<::narrowfloat::xla_ffi::OnCpu>())
#endif
