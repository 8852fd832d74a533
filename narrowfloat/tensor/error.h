// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace narrowfloat {

/// Base of every exception of the library. Messages read "verb: thing, rule, value".
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Thrown if an argument, a spec or a file's content is invalid.
class InvalidArgument : public Error {
  using Error::Error;
};

/// Thrown if the request is valid, but this build or this machine does not support it.
class Unsupported : public Error {
  using Error::Error;
};

/// Thrown if a device's driver fails.
class DeviceError : public Error {
  using Error::Error;
};

/// Thrown if the file system fails, or a file changes during a read. Damage is InvalidArgument.
class IoError : public Error {
  using Error::Error;
};

}  // namespace narrowfloat
