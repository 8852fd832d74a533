// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cpu/cpu_table.h"

#include "hwy/cache_control.h"
#include "narrowfloat/kernels/cpu/drivers.h"
#include "narrowfloat/kernels/cpu/scheme_drivers.h"

namespace narrowfloat::cpu {
namespace {

/// Returns true if the driver accepts these arguments. Only a scale or an amax that the caller gave
/// can make a scale or a factor negative, zero, infinite or NaN; the reference runs such calls.
bool Accepts(Driver driver, const QuantizeArgs& args) {
  if (driver == Driver::kReference || (args.sign_mask && driver != Driver::kPacked)) return false;
  if (driver == Driver::kWhole)
    return args.tensor_scale > 0.0f && args.tensor_scale <= kLargestFloat;
  if (kSchemes[args.scheme].layout.scale_type != ScaleType::kE4M3) return true;
  const bool is_rowwise = args.direction == Direction::kRowwise;
  const float amax = (is_rowwise ? args.rowwise : args.columnwise).amax;
  return Nvfp4Scheme::Prepare(amax, args.options).encode > 0.0f;
}

}  // namespace

CpuTable::CpuTable(const CpuTarget& target) : KernelTable(target.name), parts_(target.parts) {
  gemm = &parts_.gemm;
  joins_partial_lines = !HasLongVectors(*parts_.micro);
}

void CpuTable::Quantize(const QuantizeArgs& args) const noexcept {
  const Driver driver = Of(kSchemeDrivers[args.scheme].quantize, args.direction);
  if (!Accepts(driver, args)) return KernelTable::Quantize(args);
  if (driver == Driver::kWhole) DriveWhole(args, parts_);
  if (driver == Driver::kBlocks) DriveBlocks(args, parts_);
  if (driver == Driver::kPacked) DrivePacked(args, parts_);
  // Completes non-temporal stores before the store that signals the end of this tile.
  if (args.nontemporal) hwy::FlushStream();
}

void CpuTable::Dequantize(const DequantizeArgs& args) const noexcept {
  if (!Of(kSchemeDrivers[args.scheme].decodes, args.direction))
    return KernelTable::Dequantize(args);
  DriveDecoding(args, parts_);
  if (args.nontemporal) hwy::FlushStream();
}

}  // namespace narrowfloat::cpu
