// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/call_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "narrowfloat/ops/backend.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {

template <class Byte>
Extent ExtentOf(const BasicTensorView<Byte>& view) {
  // The other dimensions of an empty tensor may have any product.
  if (view.data == nullptr || std::ranges::count(view.shape, 0) > 0) return {};
  const auto item = static_cast<std::ptrdiff_t>(ItemSize(view.dtype));
  const std::int64_t items =
      std::accumulate(view.shape.begin(), view.shape.end(), std::int64_t{1}, std::multiplies<>());
  if (view.strides.empty()) return {view.data, view.data + items * item};
  std::ptrdiff_t low = 0, high = item;
  for (std::size_t i = 0; i < view.strides.size(); ++i) {
    const std::ptrdiff_t reach = view.strides[i] * (view.shape[i] - 1);
    (reach < 0 ? low : high) += reach;
  }
  return {view.data + low, view.data + high};
}

template Extent ExtentOf(const TensorView&);
template Extent ExtentOf(const ConstTensorView&);

std::string TensorName::Text() const {
  std::string text(name);
  if (!owner.empty()) text += fmt::format(" of {}", owner);
  if (group != kNoGroup) text += fmt::format(" of group {}", group);
  return text;
}

void CallTensors::RefuseOverlap(const Entry& a, const Entry& b) const {
  const bool a_is_first = a.is_written && (!b.is_written || a.place < b.place);
  const Entry &first = a_is_first ? a : b, &second = a_is_first ? b : a;
  throw InvalidArgument(
      fmt::format("{}: {} must not overlap {}", verb_, first.name.Text(), second.name.Text()));
}

void CallTensors::AddToMany(const Entry& entry) {
  if (count_ == kFew) many_.assign(entries_, entries_ + count_);
  many_.push_back(entry);
  entries_ = many_.data();
}

void CallTensors::CheckDisjoint() {
  std::ranges::sort(Entries(), std::ranges::less{}, [](const Entry& e) { return e.extent.begin; });
  // An entry overlaps an earlier one if it overlaps the one that ends last.
  const Entry *last = nullptr, *last_written = nullptr;
  const auto keep_later = [](const Entry*& kept, const Entry& entry) {
    if (kept == nullptr || kept->extent.end < entry.extent.end) kept = &entry;
  };
  for (const Entry& entry : Entries()) {
    if (entry.extent.begin == entry.extent.end) continue;
    const Entry* other = entry.is_written ? last : last_written;
    if (other != nullptr && entry.extent.begin < other->extent.end) RefuseOverlap(entry, *other);
    keep_later(last, entry);
    if (entry.is_written) keep_later(last_written, entry);
  }
}

const Backend& CallTensors::FindBackend() const {
  if (count_ == 0) return *FindBackendOf(Device::kCpu);
  const Entry& first = entries_[0];
  for (const Entry& entry : Entries()) {
    if (entry.device == first.device) continue;
    throw InvalidArgument(
        fmt::format("{}: all tensors must be in the memory of one device, got {} in {} memory and "
                    "{} in {} memory",
                    verb_, first.name.Text(), DeviceName(first.device), entry.name.Text(),
                    DeviceName(entry.device)));
  }
  if (const Backend* backend = FindBackendOf(first.device)) return *backend;
  throw Unsupported(
      fmt::format("{}: {} must be in the memory of a device with a backend, got {} memory", verb_,
                  first.name.Text(), DeviceName(first.device)));
}

const Backend& CallTensors::Check() {
  const Backend& backend = FindBackend();
  CheckDisjoint();
  return backend;
}

}  // namespace narrowfloat
