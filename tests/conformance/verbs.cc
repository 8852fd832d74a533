// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/verbs.h"

#include <fmt/format.h>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/hadamard.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/swizzle.h"

namespace narrowfloat::conformance {
namespace {

class KernelVerbs final : public Verbs {
 public:
  KernelVerbs(const KernelTable& kernels, const ExecutionVariant& variant)
      : execution_{.threads = variant.threads, .kernels = &kernels, .stores = variant.stores} {}

  std::string Name() const override {
    return fmt::format("{} with {} threads", execution_.kernels->name, execution_.threads);
  }
  void Quantize(const FloatTensor& in, QuantizedBuffers& out) const override {
    narrowfloat::Quantize(in.ConstView(), out.view, execution_);
  }
  void QuantizeDbias(const FloatTensor& in, QuantizedBuffers& out,
                     FloatTensor& dbias) const override {
    narrowfloat::QuantizeDbias(in.ConstView(), out.view, dbias.View(), execution_);
  }
  void Dequantize(const QuantizedBuffers& in, FloatTensor& out) const override {
    narrowfloat::Dequantize(in.view, out.View(), execution_);
  }
  void Swizzle(const QuantizedBuffers& in, QuantizedBuffers& out) const override {
    narrowfloat::Swizzle(in.view, out.view, execution_);
  }
  void Unswizzle(const QuantizedBuffers& in, QuantizedBuffers& out) const override {
    narrowfloat::Unswizzle(in.view, out.view, execution_);
  }
  void HadamardTransform(const FloatTensor& in, FloatTensor& out,
                         std::uint32_t sign_mask) const override {
    narrowfloat::HadamardTransform(in.ConstView(), out.View(), sign_mask, execution_);
  }
  void UpdateDelayedScale(const TensorView& amax_history, const TensorView& scale,
                          const DelayedScaleRule& rule,
                          const ConstTensorView* reduced_amax) const override {
    narrowfloat::UpdateDelayedScale(amax_history, scale, rule, reduced_amax, execution_);
  }

 private:
  Execution execution_;
};

}  // namespace

const std::vector<std::unique_ptr<Verbs>>& CpuVerbs() {
  static const auto all = [] {
    std::vector<std::unique_ptr<Verbs>> verbs;
    for (const KernelTable* kernels : AvailableKernels()) {
      for (const ExecutionVariant& variant : kExecutionVariants)
        verbs.push_back(std::make_unique<KernelVerbs>(*kernels, variant));
    }
    return verbs;
  }();
  return all;
}

}  // namespace narrowfloat::conformance
