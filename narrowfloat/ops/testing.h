// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat {

/// Returns the message of the error that a call throws, or "no error".
inline std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace narrowfloat
