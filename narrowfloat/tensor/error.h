// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace narrowfloat {

/// Base of every exception of the library. Messages read "verb: thing, rule, value".
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The caller's values are wrong.
class InvalidArgument : public Error {
  using Error::Error;
};

/// The request is right, but this build or this machine cannot serve it.
class Unsupported : public Error {
  using Error::Error;
};

/// A device's driver failed.
class DeviceError : public Error {
  using Error::Error;
};

/// The file system failed, or a file changed while it was read. Damaged content is InvalidArgument.
class IoError : public Error {
  using Error::Error;
};

}  // namespace narrowfloat
