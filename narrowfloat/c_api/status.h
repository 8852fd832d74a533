// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>

#include "narrowfloat/c_api.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::c_api {

/// Stores a message for nf_last_error() on this thread, truncated to a fixed size: reporting an
/// error must not allocate memory.
void SetLastError(const char* message) noexcept;
const char* LastError() noexcept;

/// Runs `body` and turns every exception into a status.
template <class Body>
std::int32_t Guard(Body&& body) noexcept {
  try {
    body();
    SetLastError("");
    return NF_OK;
  } catch (const InvalidArgument& error) {
    SetLastError(error.what());
    return NF_INVALID_ARGUMENT;
  } catch (const Unsupported& error) {
    SetLastError(error.what());
    return NF_UNSUPPORTED;
  } catch (const std::exception& error) {
    SetLastError(error.what());
    return NF_FAILURE;
  } catch (...) {
    SetLastError("narrowfloat: an exception of unknown type");
    return NF_FAILURE;
  }
}

}  // namespace narrowfloat::c_api
