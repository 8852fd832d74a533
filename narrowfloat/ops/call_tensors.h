// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

class Backend;

/// Address range of the elements of a view with a valid shape: [begin, end), empty if it has none.
struct Extent {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool Overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};
template <class Byte>
Extent ExtentOf(const BasicTensorView<Byte>& view);

/// Name of a tensor in messages: "out", "rowwise_data of a", "out of group 3".
struct TensorName {
  static constexpr std::size_t kNoGroup = static_cast<std::size_t>(-1);

  std::string_view name;
  std::string_view owner{};
  std::size_t group = kNoGroup;

  std::string Text() const;
};

/// The tensors of one call of a verb. Checks that no written tensor overlaps another one, and finds
/// the backend of their device. A call on few tensors allocates no memory.
class CallTensors {
 public:
  /// Begins messages with `verb`. Keeps it and all names by reference.
  explicit CallTensors(std::string_view verb) : verb_(verb) {}
  CallTensors(const CallTensors&) = delete;
  CallTensors& operator=(const CallTensors&) = delete;

  /// Adds a tensor that the call reads, or one that it writes.
  template <class Byte>
  void Read(const TensorName& name, const BasicTensorView<Byte>& view) {
    Add(name, ExtentOf(view), view.device, false);
  }
  void Write(const TensorName& name, const TensorView& view) {
    Add(name, ExtentOf(view), view.device, true);
  }
  /// Adds memory without a view.
  void Read(const TensorName& name, const Extent& extent, Device device) {
    Add(name, extent, device, false);
  }
  void Write(const TensorName& name, const Extent& extent, Device device) {
    Add(name, extent, device, true);
  }

  /// Checks that no written tensor overlaps another one.
  /// Errors: InvalidArgument "VERB: A must not overlap B". A is a written tensor. If B is written
  /// too, A was added first.
  void CheckDisjoint();

  /// Returns the backend of the tensors' device. Errors: InvalidArgument if they are on different
  /// devices; Unsupported if the device has no backend.
  const Backend& FindBackend() const;

  /// Checks overlaps and returns the backend. Errors: as CheckDisjoint and FindBackend.
  const Backend& Check();

 private:
  struct Entry {
    TensorName name;
    Extent extent;
    Device device;
    bool is_written;
    std::size_t place;  // in the order of additions
  };
  static constexpr std::size_t kFew = 16;

  void Add(const TensorName& name, const Extent& extent, Device device, bool is_written) {
    if (count_ < kFew) {
      ::new (entries_ + count_) Entry{name, extent, device, is_written, count_};
    } else {
      AddToMany({name, extent, device, is_written, count_});
    }
    ++count_;
  }
  void AddToMany(const Entry& entry);
  std::span<Entry> Entries() { return {entries_, count_}; }
  std::span<const Entry> Entries() const { return {entries_, count_}; }
  [[noreturn]] void RefuseOverlap(const Entry& a, const Entry& b) const;

  std::string_view verb_;
  std::size_t count_ = 0;
  alignas(Entry) std::byte few_[kFew * sizeof(Entry)];  // not initialized: a call has few tensors
  std::vector<Entry> many_;
  Entry* entries_ = reinterpret_cast<Entry*>(few_);
};

}  // namespace narrowfloat
