// SPDX-License-Identifier: Apache-2.0
// Attributes of enumerations, and exported symbols.
#pragma once

#include "bindings/ffi/attributes.h"
#include "xla/ffi/api/ffi.h"

XLA_FFI_REGISTER_ENUM_ATTR_DECODING(JAXX_Scaling_Mode);
XLA_FFI_REGISTER_ENUM_ATTR_DECODING(JAXX_Quantize_Layout);

/// Exports a handler: XLA_FFI_DEFINE_HANDLER_SYMBOL sets no visibility, and the default is hidden.
#define NF_EXPORT_HANDLER(symbol, function, ...)                                               \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* symbol(XLA_FFI_CallFrame*); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, function, __VA_ARGS__)
