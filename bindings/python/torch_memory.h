// SPDX-License-Identifier: Apache-2.0
// The memory of PyTorch's tensors, read through DLPack's exchange table, and the device that a call
// runs on. Neither links nor imports PyTorch.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat::python {

namespace nb = nanobind;

/// Memory of a tensor. `sizes` and `strides`, in items, point into the tensor, and are valid during
/// its lifetime.
struct TorchMemory {
  std::byte* data;
  DType dtype;
  Device device;
  std::span<const std::int64_t> sizes, strides;

  std::size_t Count() const;
  bool IsDense() const;
};

/// Use of a tensor's memory by a call.
enum class Access : std::uint8_t { kRead, kWrite };

/// PyTorch's side of the exchange. Set once and never changed.
class TorchExchange {
 public:
  /// Reads the exchange table. Errors: Unsupported if this PyTorch has none.
  explicit TorchExchange(const nb::object& torch);

  bool IsTensor(nb::handle object) const;
  /// Returns true if the tensor's values are the negated values of its memory, as in the imaginary
  /// part of a conjugate. DLPack does not have this information.
  bool IsNegated(nb::handle tensor) const;
  /// Returns the offset of the first item in the storage, in items.
  std::uintptr_t StorageOffset(nb::handle tensor) const;
  /// Views a tensor's memory. Returns false for a device unknown to DLPack, such as meta.
  bool View(nb::handle tensor, nb::dlpack::dltensor& memory) const;
  nb::object Float32() const { return torch_.attr("float32"); }
  /// Returns the current stream of a CUDA device.
  void* CurrentStream(int index) const;
  /// Makes a CUDA device current. Returns the index of the device that was current before.
  int ExchangeDevice(int index) const;
  /// Raises `amax`, a CUDA tensor, to `measured`, in the order of the stream. NaN in `amax` stays.
  void RaiseAmax(nb::handle amax, const nb::object& measured) const;

 private:
  nb::object torch_, tensor_type_, exchange_device_, is_neg_, storage_offset_;
  int (*view_)(void* object, nb::dlpack::dltensor* out) = nullptr;
  int (*current_stream_)(int device_type, std::int32_t index, void** out) = nullptr;
};

/// The tensors of one call of a verb, which must be on one device: the CPU or a CUDA device.
/// Requires: the GIL, in the destructor too.
class TorchCall {
 public:
  TorchCall(const TorchExchange& torch, const char* verb) : torch_(torch), verb_(verb) {}
  TorchCall(const TorchCall&) = delete;
  TorchCall& operator=(const TorchCall&) = delete;
  ~TorchCall();

  const char* verb() const { return verb_; }
  /// Returns true if the call's tensors are on the CPU. Requires: there was a tensor.
  bool OnCpu() const { return device_type_ == nb::device::cpu::value; }

  /// Returns a tensor's memory. For reading, copies a negated tensor; the copy is valid until the
  /// end of the call.
  /// Errors: TypeError for another object or type; Unsupported for another device, or for a CUDA
  /// device without a backend; InvalidArgument for a tensor on another device than the first one,
  /// for a tensor with elements but no memory, such as a wrapper, and for writing a negated
  /// tensor.
  TorchMemory MemoryOf(std::string_view name, nb::handle tensor, Access access);
  TensorView View(std::string_view name, nb::handle tensor, Access access);
  /// Views the input. If the items of its rows are not contiguous, views a copy, which is valid
  /// until the end of the call.
  TensorView ViewInput(nb::handle tensor);
  /// Views a tensor with the same memory as a dense one of `shape`. Its rank may differ: flattened
  /// codes, for example, have the same memory.
  TensorView ViewDense(std::string_view name, nb::handle tensor, DType dtype, const Shape& shape,
                       Access access);
  /// Returns the address of the one float32 of a tensor, in the memory of its device.
  const std::byte* AddressOf(std::string_view name, nb::handle tensor);
  /// Returns float32 memory that is valid until the end of the call. On CUDA PyTorch allocates it.
  TensorView Scratch(const Shape& shape);
  /// Returns a CUDA tensor like `like`, float32 with one item of -infinity.
  nb::object ScratchAmax(nb::handle like);

  /// Makes the tensors' device current until the end of the call, and returns its current stream
  /// and the number of threads.
  Execution Start(int threads);

 private:
  void CheckDevice(std::string_view name, nb::handle tensor, const nb::dlpack::dltensor& memory);

  const TorchExchange& torch_;
  const char* verb_;
  std::int32_t device_type_ = 0;  // 0: no tensor yet
  std::int32_t device_index_ = 0;
  std::string_view first_name_{};
  nb::handle first_{};
  int previous_ = -1;  // the current device before the call
  std::vector<nb::object> kept_;
  std::vector<std::vector<float>> floats_;
};

}  // namespace narrowfloat::python
