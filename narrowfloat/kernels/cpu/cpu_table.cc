// SPDX-License-Identifier: Apache-2.0
// The kernel table of an instruction set: plain C++, compiled once. Passes the micro-kernels and
// the geometry of a scheme to the driver that cpu/scheme_drivers.h names; a scheme that none serves
// runs on the reference.
#include "hwy/cache_control.h"
#include "narrowfloat/kernels/cpu/drivers.h"
#include "narrowfloat/kernels/cpu/item_kernels.h"
#include "narrowfloat/kernels/cpu/scheme_drivers.h"
#include "narrowfloat/kernels/cpu/tables.h"
#include "narrowfloat/kernels/cpu/tile_drivers.h"

namespace narrowfloat::cpu {
namespace {

/// Returns the factors of two-level scales, which do not depend on the shape of the blocks.
LineFactors FactorsOf(float amax, const ScaleOptions& options) {
  const Nvfp4Scheme::TensorState state = Nvfp4Scheme::Prepare(amax, options);
  return {state.amax, state.encode, state.encode_over_max, state.reciprocal_encode};
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
    const SchemeInfo& scheme = kSchemes[args.scheme];
    const SchemeDrivers& drivers = kSchemeDrivers[args.scheme];
    const SchemeLayout& layout = scheme.layout;
    const MicroKernels& micro = *parts_.micro;
    const Driver driver = drivers.quantize[static_cast<std::size_t>(args.direction)];
    if (args.sign_mask && driver != Driver::kPacked) return KernelTable::Quantize(args);
    switch (driver) {
      case Driver::kReference:
        return KernelTable::Quantize(args);
      case Driver::kWhole:
        // Only a scale that the caller gave can be zero, negative, infinite or NaN; the reference
        // handles these.
        if (!(args.tensor_scale > 0.0f && args.tensor_scale <= kLargestFloat))
          return KernelTable::Quantize(args);
        DriveWhole(args, micro, Of(micro.formats[drivers.format], args.dtype));
        break;
      case Driver::kBlocks:
        DriveBlocks(
            args, micro, Of(micro.formats[drivers.format], args.dtype),
            {scheme.block, layout.scale_type, layout.lines_per_scale, layout.columnwise_transposed},
            // The same for every format; rules of E8M0 do not read it.
            Fp8BlockRule<E4M3>::Prepare(0.0f, args.options));
        break;
      case Driver::kPacked: {
        const bool has_factors = layout.scale_type == ScaleType::kE4M3;
        // Only an amax that the caller gave can be negative, and the factor with it; the reference
        // handles these.
        const bool is_rowwise = args.direction == Direction::kRowwise;
        const float amax = (is_rowwise ? args.rowwise : args.columnwise).amax;
        if (has_factors && !(FactorsOf(amax, args.options).encode > 0.0f))
          return KernelTable::Quantize(args);
        DrivePacked(args, micro, Of(micro.amax, args.dtype), Of(*parts_.items, args.dtype),
                    Of(*parts_.pack, args.dtype),
                    {scheme.block, layout.scale_type, has_factors ? &FactorsOf : nullptr});
      }
    }
    // Completes non-temporal stores before the store that signals the end of this tile.
    if (args.nontemporal) hwy::FlushStream();
  }

  void Dequantize(const DequantizeArgs& args) const noexcept override {
    const SchemeDrivers& drivers = kSchemeDrivers[args.scheme];
    if (!drivers.decodes[static_cast<std::size_t>(args.direction)])
      return KernelTable::Dequantize(args);
    const SchemeInfo& scheme = kSchemes[args.scheme];
    const SchemeLayout& layout = scheme.layout;
    DriveDecoding(args, *parts_.micro, *parts_.decode,
                  Of(parts_.decode->formats[drivers.format], args.dtype),
                  {scheme.block.cols, layout.lines_per_scale, layout.scale_type,
                   CodesPerByte(scheme.element_bits), layout.columnwise_transposed,
                   // Read for E4M3 scales only.
                   Nvfp4Scheme::Prepare(args.in.amax, args.options).decode});
    if (args.nontemporal) hwy::FlushStream();
  }

 private:
  template <class Kernels>
  static const Kernels& Of(const ByType<Kernels>& kernels, DType dtype) {
    return kernels[static_cast<std::size_t>(dtype)];
  }

  const TargetParts parts_;
};

}  // namespace

std::unique_ptr<const KernelTable> MakeTable(const CpuTarget& target) {
  return std::make_unique<const CpuTable>(target);
}

}  // namespace narrowfloat::cpu
