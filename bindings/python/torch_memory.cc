// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/torch_memory.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "bindings/python/array.h"
#include "bindings/python/numpy.h"
#include "narrowfloat/ops/backend.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::python {
namespace {

/// The part of DLPack's exchange table (dlpack.h, version 1) up to the last function that is used.
struct DlpackExchange {
  std::uint32_t major, minor;
  DlpackExchange* older;
  void* allocate;
  void* to_managed;
  void* from_managed;
  int (*view)(void* object, nb::dlpack::dltensor* out);  // sets a view; returns 0 or a Python error
  int (*current_stream)(int device_type, std::int32_t index, void** out);  // returns as `view`
};

[[noreturn]] void ThrowNoMemory(const char* verb, std::string_view name) {
  throw InvalidArgument(fmt::format("{}: {} must have memory, got a tensor without", verb, name));
}

std::string DeviceText(nb::handle tensor) {
  return nb::str(nb::object(tensor.attr("device"))).c_str();
}

bool RowsAreContiguous(const TensorView& view) {
  return view.strides.empty() || view.shape.back() <= 1 ||
         view.strides.back() == static_cast<std::ptrdiff_t>(ItemSize(view.dtype));
}

/// Enables PyTorch's inference mode during its lifetime. Tensors made in that mode can be written
/// only in that mode.
class InferenceMode {
 public:
  explicit InferenceMode(const nb::object& torch) : mode_(torch.attr("inference_mode")()) {
    mode_.attr("__enter__")();
  }
  InferenceMode(const InferenceMode&) = delete;
  InferenceMode& operator=(const InferenceMode&) = delete;
  ~InferenceMode() {
    nb::error_scope kept;
    try {
      mode_.attr("__exit__")(nb::none(), nb::none(), nb::none());
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("narrowfloat");
    }
  }

 private:
  nb::object mode_;
};

}  // namespace

std::size_t TorchMemory::Count() const {
  const auto count =
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  return static_cast<std::size_t>(count);
}

bool TorchMemory::IsDense() const {
  std::int64_t step = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 0) return true;
    if (sizes[i] > 1 && strides[i] != step) return false;
    step *= sizes[i];
  }
  return true;
}

TorchExchange::TorchExchange(const nb::object& torch)
    : torch_(torch),
      tensor_type_(torch.attr("Tensor")),
      is_neg_(tensor_type_.attr("is_neg")),
      storage_offset_(tensor_type_.attr("storage_offset")) {
  constexpr std::uint32_t kMajor = 1;
  const nb::object capsule =
      nb::getattr(tensor_type_, "__dlpack_c_exchange_api__", nb::object(nb::none()));
  auto* exchange = static_cast<const DlpackExchange*>(
      capsule.is_none() ? nullptr : PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (exchange != nullptr && exchange->major > kMajor) exchange = exchange->older;
  if (exchange == nullptr || exchange->view == nullptr) {
    PyErr_Clear();
    throw Unsupported("import: narrowfloat needs PyTorch 2.15 or later, got " +
                      std::string(nb::str(nb::object(torch.attr("__version__"))).c_str()));
  }
  exchange_device_ = nb::getattr(torch.attr("_C"), "_cuda_exchangeDevice", nb::object(nb::none()));
  view_ = exchange->view;
  current_stream_ = exchange->current_stream;
}

bool TorchExchange::IsTensor(nb::handle object) const {
  return PyObject_IsInstance(object.ptr(), tensor_type_.ptr()) == 1;
}

bool TorchExchange::IsNegated(nb::handle tensor) const {
  return nb::cast<bool>(is_neg_(tensor));
}

std::uintptr_t TorchExchange::StorageOffset(nb::handle tensor) const {
  return nb::cast<std::uintptr_t>(storage_offset_(tensor));
}

bool TorchExchange::View(nb::handle tensor, nb::dlpack::dltensor& memory) const {
  if (view_(tensor.ptr(), &memory) == 0) return true;
  PyErr_Clear();
  return false;
}

void* TorchExchange::CurrentStream(int index) const {
  void* stream = nullptr;
  if (current_stream_ == nullptr) return stream;
  if (current_stream_(nb::device::cuda::value, index, &stream) != 0) throw nb::python_error();
  return stream;
}

int TorchExchange::ExchangeDevice(int index) const {
  return nb::cast<int>(exchange_device_(index));
}

void TorchExchange::RaiseAmax(nb::handle amax, const nb::object& measured) const {
  const InferenceMode mode(torch_);
  // Writes `data`, as kernels write memory: autograd's saved tensors do not detect such writes.
  amax.attr("data").attr("clamp_")(measured);
}

TorchCall::~TorchCall() {
  if (previous_ < 0 || previous_ == device_index_) return;
  nb::error_scope kept;
  try {
    torch_.ExchangeDevice(previous_);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("narrowfloat");
  }
}

void TorchCall::CheckDevice(std::string_view name, nb::handle tensor,
                            const nb::dlpack::dltensor& memory) {
  const nb::dlpack::device device = memory.device;
  if (device_type_ == 0) {
    if (device.device_type == nb::device::cuda::value && FindBackendOf(Device::kCuda) == nullptr) {
      throw Unsupported(
          fmt::format("{}: {} must be on the CPU, because this build of narrowfloat has no CUDA "
                      "backend, got a tensor on {}",
                      verb_, name, DeviceText(tensor)));
    }
    device_type_ = device.device_type;
    device_index_ = device.device_id;
    first_name_ = name;
    first_ = tensor;
  } else if (device.device_type != device_type_ || device.device_id != device_index_) {
    throw InvalidArgument(
        fmt::format("{}: all tensors must be on one device, "
                    "got {} on {} and {} on {}",
                    verb_, first_name_, DeviceText(first_), name, DeviceText(tensor)));
  }
}

TorchMemory TorchCall::MemoryOf(std::string_view name, nb::handle tensor, Access access) {
  if (!torch_.IsTensor(tensor)) {
    throw nb::type_error(fmt::format("{}: {} must be a torch.Tensor, got {}", verb_, name,
                                     nb::type_name(tensor.type()).c_str())
                             .c_str());
  }
  nb::dlpack::dltensor memory;
  const bool has_memory = torch_.View(tensor, memory);
  if (!has_memory || (memory.device.device_type != nb::device::cpu::value &&
                      memory.device.device_type != nb::device::cuda::value)) {
    const std::string type = nb::cast<std::string>(tensor.attr("device").attr("type"));
    if (type == "cpu" || type == "cuda") ThrowNoMemory(verb_, name);
    throw Unsupported(fmt::format("{}: {} must be on the CPU or a CUDA device, got a tensor on {}",
                                  verb_, name, DeviceText(tensor)));
  }
  CheckDevice(name, tensor, memory);
  const std::optional<DType> dtype = DTypeOfDlpack(memory.dtype);
  if (!dtype) {
    throw nb::type_error(fmt::format("{}: {} must be uint8, {}, got {}", verb_, name,
                                     FloatTypeNames(),
                                     nb::str(nb::object(tensor.attr("dtype"))).c_str())
                             .c_str());
  }
  if (IsFloat(*dtype) && torch_.IsNegated(tensor)) {
    if (access == Access::kRead)
      return MemoryOf(name, kept_.emplace_back(tensor.attr("resolve_neg")()), access);
    throw InvalidArgument(fmt::format(
        "{}: {} must not have PyTorch's negative bit, because it is written, got a tensor with it",
        verb_, name));
  }
  const auto rank = static_cast<std::size_t>(memory.ndim);
  const TorchMemory tensor_memory{static_cast<std::byte*>(memory.data) + memory.byte_offset,
                                  *dtype,
                                  OnCpu() ? Device::kCpu : Device::kCuda,
                                  {memory.shape, rank},
                                  {memory.strides, rank}};
  // For a tensor whose storage has no memory, PyTorch returns its offset in the storage as address.
  // Reading an offset takes 50 ns, so that only addresses small enough for an offset are checked.
  constexpr std::uintptr_t kAboveOffsets = std::uintptr_t{1} << 40;
  const auto address = reinterpret_cast<std::uintptr_t>(tensor_memory.data);
  if (address < kAboveOffsets && tensor_memory.Count() != 0 &&
      address == torch_.StorageOffset(tensor) * ItemSize(*dtype)) {
    ThrowNoMemory(verb_, name);
  }
  return tensor_memory;
}

TensorView TorchCall::View(std::string_view name, nb::handle tensor, Access access) {
  const TorchMemory memory = MemoryOf(name, tensor, access);
  TensorView view{
      memory.data, memory.dtype, {memory.sizes.begin(), memory.sizes.end()}, {}, memory.device};
  if (memory.IsDense()) return view;
  view.strides.assign(memory.strides.begin(), memory.strides.end());
  for (std::ptrdiff_t& stride : view.strides)
    stride *= static_cast<std::ptrdiff_t>(ItemSize(memory.dtype));
  return view;
}

TensorView TorchCall::ViewInput(nb::handle tensor) {
  constexpr std::string_view kName = "the input";
  TensorView view = View(kName, tensor, Access::kRead);
  if (RowsAreContiguous(view)) return view;
  return View(kName, kept_.emplace_back(tensor.attr("contiguous")()), Access::kRead);
}

TensorView TorchCall::ViewDense(std::string_view name, nb::handle tensor, DType dtype,
                                const Shape& shape, Access access) {
  const TorchMemory memory = MemoryOf(name, tensor, access);
  if (memory.dtype != dtype || !memory.IsDense() || memory.Count() != FlattenShape(shape).Size()) {
    throw InvalidArgument(fmt::format("{}: {} must be {} of {} and contiguous, got {} of {}", verb_,
                                      name, DTypeName(dtype), ShapeText(shape),
                                      DTypeName(memory.dtype),
                                      ShapeText({memory.sizes.begin(), memory.sizes.end()})));
  }
  return {memory.data, dtype, shape, {}, memory.device};
}

const std::byte* TorchCall::AddressOf(std::string_view name, nb::handle tensor) {
  return ViewDense(name, tensor, DType::kFloat32, {1}, Access::kRead).data;
}

TensorView TorchCall::Scratch(const Shape& shape) {
  const std::size_t size = FlattenShape(shape).Size();
  if (OnCpu()) {
    std::vector<float>& floats = floats_.emplace_back(size);
    return {reinterpret_cast<std::byte*>(floats.data()), DType::kFloat32, shape, {}, Device::kCpu};
  }
  const nb::object dtype = torch_.Float32();
  const nb::object& made =
      kept_.emplace_back(first_.attr("new_empty")(size, nb::arg("dtype") = dtype));
  return ViewDense("scratch memory", made, DType::kFloat32, shape, Access::kWrite);
}

nb::object TorchCall::ScratchAmax(nb::handle like) {
  return like.attr("new_full")(like.attr("shape"), -std::numeric_limits<float>::infinity());
}

Execution TorchCall::Start(int threads) {
  if (device_type_ != nb::device::cuda::value) return {.threads = threads};
  previous_ = torch_.ExchangeDevice(device_index_);
  return {.threads = threads, .stream = torch_.CurrentStream(device_index_)};
}

}  // namespace narrowfloat::python
