// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_tensors.h"

#include <algorithm>

#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/ops/cuda/cuda_backend.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/hadamard.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/swizzle.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::conformance {
namespace {

#if defined(NF_CUDA_EMULATED)
constexpr bool kIsEmulated = true;
constexpr CudaBackend kBackend;
#else
constexpr bool kIsEmulated = false;
#endif

// The emulation has its own guards, of which ASan reports reads too.
constexpr std::size_t kGuardBytes = kIsEmulated ? 0 : 256;
constexpr std::byte kGuard{0x5A};

std::size_t PastLine(const std::byte* host) {
  return reinterpret_cast<std::uintptr_t>(host) % 64;
}

std::size_t BytesOf(const Extent& extent) {
  return static_cast<std::size_t>(extent.end - extent.begin);
}

}  // namespace

std::string UseDevice() {
#if defined(NF_CUDA_EMULATED)
  RegisterBackend(Device::kCuda, &kBackend);
#endif
  try {
    cuda::RequireDevice();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

bool IsRealDevice() {
  return !kIsEmulated;
}

DeviceBytes::DeviceBytes(const std::byte* host, std::size_t bytes)
    : lead_(kGuardBytes + PastLine(host)),
      bytes_(bytes),
      memory_(std::max<std::size_t>(1, lead_ + bytes + kGuardBytes), nullptr) {
  std::vector<std::byte> content(lead_ + bytes + kGuardBytes, kGuard);
  std::copy_n(host, bytes, content.begin() + static_cast<std::ptrdiff_t>(lead_));
  cuda::Copy(memory_.data(), content.data(), content.size(), nullptr);
  cuda::Synchronize(nullptr);
}

void DeviceBytes::CopyTo(std::byte* host) const {
  std::vector<std::byte> content(lead_ + bytes_ + kGuardBytes);
  cuda::Copy(content.data(), memory_.data(), content.size(), nullptr);
  cuda::Synchronize(nullptr);
  const auto begin = content.begin() + static_cast<std::ptrdiff_t>(lead_);
  const auto end = begin + static_cast<std::ptrdiff_t>(bytes_);
  std::copy(begin, end, host);
  const auto is_guard = [](std::byte byte) { return byte == kGuard; };
  EXPECT_TRUE(std::all_of(content.begin(), begin, is_guard)) << "bytes before were written to";
  EXPECT_TRUE(std::all_of(end, content.end(), is_guard)) << "bytes behind were written to";
}

DeviceTensor::DeviceTensor(const ConstTensorView& host)
    : view{nullptr, host.dtype, host.shape, host.strides, Device::kCuda},
      offset_(ExtentOf(host).begin == ExtentOf(host).end ? 0 : host.data - ExtentOf(host).begin),
      bytes_(ExtentOf(host).begin, BytesOf(ExtentOf(host))) {
  view.data = bytes_.data() + offset_;
}

void DeviceTensor::CopyTo(const TensorView& host) const {
  bytes_.CopyTo(host.data - offset_);
}

DeviceBuffers::DeviceBuffers(const QuantizedBuffers& host) : view(host.view) {
  for (const BufferPlan& buffer : host.plan()) {
    if (buffer.role != buffer.storage) continue;
    memory_[static_cast<std::size_t>(buffer.role)] =
        std::make_unique<DeviceBytes>(host.Data(buffer.role), BufferBytes(buffer));
  }
  for (const BufferPlan& buffer : host.plan()) {
    view[buffer.role].data = memory_[static_cast<std::size_t>(buffer.storage)]->data();
    view[buffer.role].device = Device::kCuda;
  }
}

void DeviceBuffers::CopyTo(QuantizedBuffers& host) const {
  for (const BufferPlan& buffer : host.plan()) {
    if (buffer.role == buffer.storage)
      memory_[static_cast<std::size_t>(buffer.role)]->CopyTo(host.Data(buffer.role));
  }
}

namespace {

class OnDevice final : public Verbs {
 public:
  std::string Name() const override { return kIsEmulated ? "the emulation" : "the device"; }

  void Quantize(const FloatTensor& in, QuantizedBuffers& out) const override {
    const DeviceTensor device_in(in.ConstView());
    const DeviceBuffers device_out(out);
    narrowfloat::Quantize(device_in.view, device_out.view);
    device_out.CopyTo(out);
  }
  void QuantizeDbias(const FloatTensor& in, QuantizedBuffers& out,
                     FloatTensor& dbias) const override {
    const DeviceTensor device_in(in.ConstView()), device_dbias(dbias.ConstView());
    const DeviceBuffers device_out(out);
    narrowfloat::QuantizeDbias(device_in.view, device_out.view, device_dbias.view);
    device_out.CopyTo(out);
    device_dbias.CopyTo(dbias.View());
  }
  void Dequantize(const QuantizedBuffers& in, FloatTensor& out) const override {
    const DeviceBuffers device_in(in);
    const DeviceTensor device_out(out.ConstView());
    narrowfloat::Dequantize(device_in.view, device_out.view);
    device_out.CopyTo(out.View());
  }
  void Swizzle(const QuantizedBuffers& in, QuantizedBuffers& out) const override {
    const DeviceBuffers device_in(in), device_out(out);
    narrowfloat::Swizzle(device_in.view, device_out.view);
    device_out.CopyTo(out);
  }
  void Unswizzle(const QuantizedBuffers& in, QuantizedBuffers& out) const override {
    const DeviceBuffers device_in(in), device_out(out);
    narrowfloat::Unswizzle(device_in.view, device_out.view);
    device_out.CopyTo(out);
  }
  void HadamardTransform(const FloatTensor& in, FloatTensor& out,
                         std::uint32_t sign_mask) const override {
    const DeviceTensor device_in(in.ConstView()), device_out(out.ConstView());
    narrowfloat::HadamardTransform(device_in.view, device_out.view, sign_mask);
    device_out.CopyTo(out.View());
  }
  void UpdateDelayedScale(const TensorView& amax_history, const TensorView& scale,
                          const DelayedScaleRule& rule,
                          const ConstTensorView* reduced_amax) const override {
    const DeviceTensor device_history(amax_history), device_scale(scale);
    std::unique_ptr<DeviceTensor> device_reduced;
    ConstTensorView reduced;
    if (reduced_amax != nullptr) {
      device_reduced = std::make_unique<DeviceTensor>(*reduced_amax);
      reduced = device_reduced->view;
    }
    narrowfloat::UpdateDelayedScale(device_history.view, device_scale.view, rule,
                                    reduced_amax != nullptr ? &reduced : nullptr);
    device_history.CopyTo(amax_history);
    device_scale.CopyTo(scale);
  }
};

}  // namespace

const Verbs& DeviceVerbs() {
  static const OnDevice verbs;
  return verbs;
}

}  // namespace narrowfloat::conformance
