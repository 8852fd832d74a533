// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat {

/// Returns the message of the `Expected` that a call throws, or a text for any other result.
template <class Expected = Error>
std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no error";
}

}  // namespace narrowfloat
