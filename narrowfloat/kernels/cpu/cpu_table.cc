// SPDX-License-Identifier: Apache-2.0
// The kernel table of an instruction set: plain C++, compiled once. Passes its micro-kernels to the
// driver that cpu/scheme_drivers.h names; a scheme that none serves runs on the reference.
#include "hwy/cache_control.h"
#include "narrowfloat/kernels/cpu/drivers.h"
#include "narrowfloat/kernels/cpu/item_kernels.h"
#include "narrowfloat/kernels/cpu/scheme_drivers.h"
#include "narrowfloat/kernels/cpu/tables.h"
#include "narrowfloat/kernels/cpu/tile_drivers.h"

namespace narrowfloat::cpu {
namespace {

/// Returns true if the driver takes these arguments. Only a scale or an amax that the caller gave
/// can make a scale or a factor negative, zero, infinite or NaN; the reference handles these.
bool Takes(Driver driver, const QuantizeArgs& args) {
  if (driver == Driver::kReference || (args.sign_mask && driver != Driver::kPacked)) return false;
  if (driver == Driver::kWhole)
    return args.tensor_scale > 0.0f && args.tensor_scale <= kLargestFloat;
  if (kSchemes[args.scheme].layout.scale_type != ScaleType::kE4M3) return true;
  const bool is_rowwise = args.direction == Direction::kRowwise;
  const float amax = (is_rowwise ? args.rowwise : args.columnwise).amax;
  return Nvfp4Scheme::Prepare(amax, args.options).encode > 0.0f;
}

class CpuTable final : public KernelTable {
 public:
  explicit CpuTable(const CpuTarget& target)
      : KernelTable(target.name), parts_(PartsOf(target.index)) {
    gemm = &parts_.gemm;
  }

  float Amax(DType dtype, const MatrixRows<const std::byte>& in,
             const Tile& tile) const noexcept override {
    return DriveAmax(in, tile, Of(*parts_.items, dtype));
  }
  void ColumnSum(DType dtype, const MatrixRows<const std::byte>& in, const Tile& tile,
                 float* sums) const noexcept override {
    DriveColumnSum(in, tile, Of(*parts_.items, dtype), sums);
  }
  float AmaxSum(DType dtype, const MatrixRows<const std::byte>& in, const Tile& tile,
                float* sums) const noexcept override {
    return DriveAmaxSum(in, tile, Of(*parts_.items, dtype), sums);
  }
  void ColumnAmax(DType dtype, const MatrixRows<const std::byte>& in, const Tile& tile,
                  float* amaxes) const noexcept override {
    DriveColumnAmax(in, tile, Of(parts_.micro->amax, dtype), amaxes);
  }
  float Hadamard(DType dtype, const MatrixRows<const std::byte>& in, const Tile& tile,
                 std::uint32_t sign_mask,
                 const MatrixRows<std::byte>& out) const noexcept override {
    return DriveHadamard(in, tile, Of(*parts_.items, dtype), dtype, sign_mask, out);
  }

  void Quantize(const QuantizeArgs& args) const noexcept override {
    const Driver driver = Of(kSchemeDrivers[args.scheme].quantize, args.direction);
    if (!Takes(driver, args)) return KernelTable::Quantize(args);
    if (driver == Driver::kWhole) DriveWhole(args, parts_);
    if (driver == Driver::kBlocks) DriveBlocks(args, parts_);
    if (driver == Driver::kPacked) DrivePacked(args, parts_);
    // Completes non-temporal stores before the store that signals the end of this tile.
    if (args.nontemporal) hwy::FlushStream();
  }

  void Dequantize(const DequantizeArgs& args) const noexcept override {
    if (!Of(kSchemeDrivers[args.scheme].decodes, args.direction))
      return KernelTable::Dequantize(args);
    DriveDecoding(args, parts_);
    if (args.nontemporal) hwy::FlushStream();
  }

 private:
  const TargetParts parts_;
};

}  // namespace

std::unique_ptr<const KernelTable> MakeTable(const CpuTarget& target) {
  return std::make_unique<const CpuTable>(target);
}

}  // namespace narrowfloat::cpu
