// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/kernels/cpu/tables.h"
#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat::cpu {

/// The kernel table of an instruction set: plain C++, compiled once. Calls the micro-kernels of the
/// target.
class CpuTable final : public KernelTable {
 public:
  explicit CpuTable(const CpuTarget& target);

  // In tile_drivers.cc.
  float Amax(const TileItems& items) const noexcept override;
  void ColumnSum(const TileItems& items, float* sums, float* amax) const noexcept override;
  void ColumnAmax(const TileItems& items, float* amaxes) const noexcept override;
  float Hadamard(const TileItems& items, std::uint32_t sign_mask,
                 const MatrixRows<std::byte>& out) const noexcept override;
  // Call the driver of the scheme (scheme_drivers.h). Schemes without one run on the reference.
  void Quantize(const QuantizeArgs& args) const noexcept override;
  void Dequantize(const DequantizeArgs& args) const noexcept override;

 private:
  const TargetParts parts_;
};

}  // namespace narrowfloat::cpu
