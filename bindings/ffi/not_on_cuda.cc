// SPDX-License-Identifier: Apache-2.0
// CUDA handlers of targets that only the CPU has. Their message says so; XLA's own does not.
#include <string>

#include "bindings/ffi/decoding.h"
#include "bindings/ffi/execution.h"

namespace narrowfloat::xla_ffi {
namespace {

ffi::Error Refuse(const char* what) {
  return {ffi::ErrorCode::kUnimplemented,
          std::string(what) + " must run on the CPU, got the platform CUDA"};
}

ffi::Error RefuseProduct(ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) {
  return Refuse("gemm: products of codes");
}
ffi::Error RefuseInspect(ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) {
  return Refuse("inspect: files of arrays");
}

auto Bind() {
  return ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs();
}

}  // namespace

NF_EXPORT_HANDLER(nf_gemm_ffi_cuda, RefuseProduct, Bind());
NF_EXPORT_HANDLER(nf_expand_product_ffi_cuda, RefuseProduct, Bind());
NF_EXPORT_HANDLER(te_inspect_ffi_cuda, RefuseInspect, Bind());

}  // namespace narrowfloat::xla_ffi
