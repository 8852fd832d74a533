// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/plan.h"
#include "narrowfloat/tensor/view.h"
#include "narrowfloat/types/owned_buffers.h"

namespace narrowfloat {

/// Complete description of a quantized tensor. Storages made from one description share buffers.
struct QuantizedTensorMetadata {
  QuantSpec spec;  // its directions are the ones that have buffers
  Shape shape;
  DType dtype = DType::kFloat32;  // nominal: the type that Dequantize returns by default
  OwnedBuffers buffers;
};

/// The buffers of one quantized tensor, with their description. Movable; a copy must be explicit.
/// The buffers may be absent (saved, cleared, both directions dropped, moved from): operations that
/// need them then throw InvalidArgument naming the reason.
class QuantizedTensorStorage {
 public:
  /// Allocates buffers as PlanQuantize lists them, not initialised. Errors: as PlanQuantize;
  /// InvalidArgument if `dtype` is not a float type.
  QuantizedTensorStorage(const QuantSpec& spec, Shape shape, DType dtype = DType::kFloat32);
  /// Takes existing buffers. Codes and scale_inv of every direction in the spec must be present;
  /// scale and amax may be absent. Errors: InvalidArgument naming the buffer that is missing,
  /// differs from the plan or is not part of it.
  explicit QuantizedTensorStorage(QuantizedTensorMetadata metadata);
  QuantizedTensorStorage(QuantizedTensorStorage&& other) noexcept;
  QuantizedTensorStorage& operator=(QuantizedTensorStorage&& other) noexcept;
  ~QuantizedTensorStorage() = default;

  const QuantSpec& Spec() const { return spec_; }
  const Shape& GetShape() const { return shape_; }
  DType NominalDType() const { return dtype_; }
  bool HoldsBuffers() const { return state_ == State::kHolding; }
  bool Has(Role role) const { return static_cast<bool>(BufferOf(buffers_, role)); }

  /// Returns views by role for the verbs, valid as long as the buffers.
  QuantizedView View();
  ConstQuantizedView ConstView() const;

  /// Returns the description; the buffers are shared.
  QuantizedTensorMetadata GetMetadata() const;

  /// Releases every buffer. May be called again.
  void Clear();

  /// Sets the directions: nullopt keeps a direction as it is, false drops it, true keeps it or
  /// derives columnwise buffers from rowwise ones (requires DerivesColumnwise and scales that are
  /// not swizzled). Both may be dropped. Errors: InvalidArgument for a direction that cannot be
  /// derived, before anything changes.
  void UpdateUsage(std::optional<bool> rowwise, std::optional<bool> columnwise,
                   const Execution& execution = {});

  /// Returns the buffers: codes, then scale_inv, rowwise first, then scale and amaxes. The storage
  /// keeps their types and shapes, which RestoreFromSaved checks.
  std::vector<OwnedTensor> PrepareForSaving();

  /// Takes the buffers back from the front of `saved`, in the order of PrepareForSaving, and
  /// returns the rest. Errors: InvalidArgument, before anything changes, if nothing was saved, or
  /// there are too few tensors or one has another type or shape.
  std::span<OwnedTensor> RestoreFromSaved(std::span<OwnedTensor> saved);

  /// Returns the values, in `dtype` or the nominal type.
  OwnedTensor Dequantize(std::optional<DType> dtype = std::nullopt,
                         const Execution& execution = {}) const;
  /// Writes the values to `out`. Errors: as the verb Dequantize.
  void Dequantize(const TensorView& out, const Execution& execution = {}) const;

 private:
  friend class Quantizer;    // restores cleared or dropped buffers
  friend class SavedObject;  // checks the whole list before it restores the first

  enum class State : std::uint8_t { kHolding, kSaved, kCleared, kDropped, kMovedFrom };

  struct EmptyCopy {};
  QuantizedTensorStorage(EmptyCopy, const QuantizedTensorStorage& saved);

  std::string Name() const;
  void RequireBuffers(const char* verb) const;
  void RequireOwnership(const char* verb) const;
  void CheckRestorable(std::span<const OwnedTensor> saved) const;
  OwnedBuffers DeriveColumnwise(const Execution& execution) const;

  QuantSpec spec_;
  Shape shape_;
  DType dtype_;
  OwnedBuffers buffers_;
  State state_ = State::kHolding;
  State state_when_saved_ = State::kHolding;
  std::vector<BufferPlan> saved_;  // buffers that PrepareForSaving returned, in that order
};

}  // namespace narrowfloat
