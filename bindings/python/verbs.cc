// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/verbs.h"

#include <fmt/format.h>
#include <nanobind/stl/string_view.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/array.h"
#include "bindings/python/docs.h"
#include "bindings/python/options.h"
#include "bindings/python/quantized_tensor.h"
#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/hadamard.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/requantize.h"
#include "narrowfloat/ops/swizzle.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::python {
namespace {

Fill FillFor(const CallOptions& options) {
  return options.IsNoop() ? Fill::kZero : Fill::kNone;
}

/// Returns the tensor to fill: `out` if it is given and has the same plan, else a new one.
/// Errors: TypeError if `out` has another type; InvalidArgument if its plan differs.
nb::object OutputTensor(const char* verb, const nb::object& out, const ArrayView& in,
                        const CallOptions& options) {
  const QuantSpec& spec = options.spec;
  if (out.is_none()) {
    return nb::cast(NewTensor(spec, in.view.shape, in.view.dtype, FillFor(options)));
  }
  const QuantizedTensor& given = ParseTensor(verb, "out", out);
  const QuantSpec& has = given.spec;
  if (has.scheme != spec.scheme || has.rowwise != spec.rowwise ||
      has.columnwise != spec.columnwise || has.swizzled != spec.swizzled) {
    throw InvalidArgument(fmt::format("{}: out must be of the plan {}, got {}", verb,
                                      PrintQuantSpec(spec), PrintQuantSpec(has)));
  }
  return out;
}

/// Returns views of the output under the call's spec.
TensorMemory ViewOutputBuffers(const char* verb, const QuantizedTensor& tensor,
                               const CallOptions& options) {
  TensorMemory held = ViewWritableBuffers(verb, tensor);
  held.view.spec = options.spec;
  return held;
}

nb::object QuantizeArray(const nb::object& x, std::string_view scheme, Flag rowwise,
                         Flag columnwise, const nb::object& out, const nb::kwargs& kwargs) {
  const CallOptions options =
      ParseOptions("quantize", scheme, rowwise, columnwise, kwargs, OptionScope::kSpecAndExecution);
  const ArrayView in = ViewInput("quantize", x);
  nb::object result = OutputTensor("quantize", out, in, options);
  auto& tensor = *nb::inst_ptr<QuantizedTensor>(result);
  const TensorMemory held = ViewOutputBuffers("quantize", tensor, options);
  {
    const nb::gil_scoped_release unlocked;
    Quantize(in.view, held.view, options.MakeExecution());
  }
  if (!options.IsNoop()) tensor.spec = options.spec;
  return result;
}

nb::tuple QuantizeDbiasArray(const nb::object& x, std::string_view scheme, Flag rowwise,
                             Flag columnwise, const nb::object& out, const nb::kwargs& kwargs) {
  constexpr const char* kVerb = "quantize_dbias";
  const CallOptions options =
      ParseOptions(kVerb, scheme, rowwise, columnwise, kwargs, OptionScope::kSpecAndExecution);
  const ArrayView in = ViewInput(kVerb, x);
  const bool pair = PyTuple_Check(out.ptr()) && PyTuple_Size(out.ptr()) == 2;
  if (!out.is_none() && !pair) {
    throw nb::type_error("quantize_dbias: out must be a tuple (QuantizedTensor, array) or None");
  }
  const Shape columns{static_cast<std::int64_t>(FlattenShape(in.view.shape).cols)};
  nb::object result = OutputTensor(kVerb, pair ? nb::object(out[0]) : out, in, options);
  nb::object dbias = pair ? nb::object(out[1]) : NewArray(in.view.dtype, columns);
  const ArrayView held_dbias = ViewOutput(kVerb, dbias, in.view.dtype, columns);
  if (!pair && options.IsNoop()) ZeroArray(held_dbias);
  auto& tensor = *nb::inst_ptr<QuantizedTensor>(result);
  const TensorMemory held = ViewOutputBuffers(kVerb, tensor, options);
  {
    const nb::gil_scoped_release unlocked;
    QuantizeDbias(in.view, held.view, held_dbias.view, options.MakeExecution());
  }
  if (!options.IsNoop()) tensor.spec = options.spec;
  return nb::make_tuple(result, dbias);
}

nb::object FakeQuantizeArray(const nb::object& x, std::string_view scheme, const nb::object& out,
                             const nb::kwargs& kwargs) {
  constexpr const char* kVerb = "fake_quantize";
  const CallOptions options =
      ParseOptions(kVerb, scheme, true, false, kwargs, OptionScope::kSpecAndExecution);
  const ArrayView in = ViewInput(kVerb, x);
  nb::object result = out.is_none() ? NewArray(in.view.dtype, in.view.shape) : out;
  const ArrayView held = ViewOutput(kVerb, result, in.view.dtype, in.view.shape);
  CallTensors tensors(kVerb);
  tensors.Write({"out"}, held.view);
  tensors.Read({"the input"}, in.view);
  tensors.CheckDisjoint();
  if (out.is_none() && options.IsNoop()) ZeroArray(held);
  const nb::gil_scoped_release unlocked;
  FakeQuantize(in.view, options.spec, held.view, options.MakeExecution());
  return result;
}

nb::object DequantizeObject(const nb::object& q, const nb::object& dtype, const nb::object& out,
                            const nb::kwargs& options) {
  return DequantizeTensor(ParseTensor("dequantize", "q", q), dtype, out, options);
}

using PermuteFn = void (*)(const ConstQuantizedView&, const QuantizedView&, const Execution&);

/// Returns a copy of `q` with scales in the other placement and the same buffers.
QuantizedTensor Permuted(const char* verb, PermuteFn permute, const nb::object& q) {
  const QuantizedTensor& source = ParseTensor(verb, "q", q);
  const TensorMemory in = ViewBuffers(verb, source);
  QuantSpec spec = source.spec;
  spec.swizzled = !spec.swizzled && spec.scheme->layout.swizzles;
  QuantizedTensor result = NewTensor(spec, source.shape, source.dtype, Fill::kNone);
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (!source.arrays[i].is_valid()) result.arrays[i] = nb::object();
  }
  const TensorMemory out = ViewWritableBuffers(verb, result);
  const nb::gil_scoped_release unlocked;
  permute(in.view, out.view, {});
  return result;
}

QuantizedTensor RequantizeTensor(const nb::object& q, std::string_view scheme, Flag rowwise,
                                 Flag columnwise, const nb::object& between,
                                 const nb::kwargs& kwargs) {
  constexpr const char* kVerb = "requantize";
  const CallOptions options =
      ParseOptions(kVerb, scheme, rowwise, columnwise, kwargs, OptionScope::kSpecAndExecution);
  const QuantizedTensor& source = ParseTensor(kVerb, "q", q);
  const TensorMemory in = ViewBuffers(kVerb, source);
  QuantizedTensor result = NewTensor(options.spec, source.shape, source.dtype,
                                     options.IsNoop() ? Fill::kZero : Fill::kNone);
  const TensorMemory out = ViewWritableBuffers(kVerb, result);
  const DType type = ParseFloatDType(kVerb, between);
  const nb::gil_scoped_release unlocked;
  Requantize(in.view, out.view, type, options.MakeExecution());
  return result;
}

nb::object HadamardArray(const nb::object& x, std::uint32_t sign_mask, const nb::object& out,
                         const nb::kwargs& kwargs) {
  constexpr const char* kVerb = "hadamard_transform";
  const Execution execution = ParseExecution(kVerb, kwargs);
  const ArrayView in = ViewInput(kVerb, x);
  nb::object result = out.is_none() ? NewArray(in.view.dtype, in.view.shape) : out;
  const ArrayView held = ViewOutput(kVerb, result, in.view.dtype, in.view.shape);
  const nb::gil_scoped_release unlocked;
  HadamardTransform(in.view, held.view, sign_mask, execution);
  return result;
}

nb::object BlockScalesArray(const nb::object& q, bool columnwise) {
  constexpr const char* kVerb = "block_scales_to_mxfp8";
  const TensorMemory in = ViewBuffers(kVerb, ParseTensor(kVerb, "q", q));
  const Direction direction = columnwise ? Direction::kColumnwise : Direction::kRowwise;
  const Shape shape = Mxfp8ScalesShape(in.view, direction);
  nb::object result = NewArray(DType::kUInt8, shape);
  const ArrayView held = ViewOutput(kVerb, result, DType::kUInt8, shape);
  const nb::gil_scoped_release unlocked;
  BlockScalesToMxfp8(in.view, direction, held.view);
  return result;
}

QuantizedTensor EmptyTensor(const nb::object& shape, std::string_view scheme, Flag rowwise,
                            Flag columnwise, const nb::object& dtype, const nb::kwargs& options) {
  const QuantSpec spec =
      ParseOptions("empty", scheme, rowwise, columnwise, options, OptionScope::kSpecOnly).spec;
  return NewTensor(spec, ParseShape("empty", shape), ParseFloatDType("empty", dtype), Fill::kZero);
}

}  // namespace

nb::object DequantizeTensor(const QuantizedTensor& tensor, const nb::object& dtype,
                            const nb::object& out, const nb::kwargs& options) {
  constexpr const char* kVerb = "dequantize";
  const Execution execution = ParseExecution(kVerb, options);
  const DType wanted = dtype.is_none() ? tensor.dtype : ParseFloatDType(kVerb, dtype);
  const TensorMemory in = ViewBuffers(kVerb, tensor);
  nb::object result = out.is_none() ? NewArray(wanted, tensor.shape) : out;
  const ArrayView held = ViewOutput(kVerb, result, wanted, tensor.shape);
  const nb::gil_scoped_release unlocked;
  Dequantize(in.view, held.view, execution);
  return result;
}

void RegisterVerbs(nb::module_& module) {
  module.def("quantize", &QuantizeArray, nb::arg("x").noconvert().none(), nb::arg("scheme"),
             nb::arg("rowwise") = true, nb::arg("columnwise") = false, nb::arg("out") = nb::none(),
             nb::arg("options"), nb::sig(kQuantizeSignature), kQuantizeDoc);
  module.def("quantize_dbias", &QuantizeDbiasArray, nb::arg("x").noconvert().none(),
             nb::arg("scheme"), nb::arg("rowwise") = true, nb::arg("columnwise") = false,
             nb::arg("out") = nb::none(), nb::arg("options"), nb::sig(kQuantizeDbiasSignature),
             kQuantizeDbiasDoc);
  module.def("fake_quantize", &FakeQuantizeArray, nb::arg("x").noconvert().none(),
             nb::arg("scheme"), nb::arg("out").noconvert() = nb::none(), nb::arg("options"),
             nb::sig(kFakeQuantizeSignature), kFakeQuantizeDoc);
  module.def("dequantize", &DequantizeObject, nb::arg("q").none(), nb::arg("dtype") = nb::none(),
             nb::arg("out").noconvert() = nb::none(), nb::arg("options"),
             nb::sig(kDequantizeSignature), kDequantizeDoc);
  module.def("from_buffers", &FromBuffers, nb::arg("scheme"), nb::arg("shape"), nb::arg("buffers"),
             nb::arg("dtype") = DTypeObject(DType::kFloat32), nb::arg("options"),
             nb::sig(kFromBuffersSignature), kFromBuffersDoc);
  module.def(
      "swizzle", [](const nb::object& q) { return Permuted("swizzle", &Swizzle, q); },
      nb::arg("q").none(), nb::sig(kSwizzleSignature), kSwizzleDoc);
  module.def(
      "unswizzle", [](const nb::object& q) { return Permuted("unswizzle", &Unswizzle, q); },
      nb::arg("q").none(), nb::sig(kUnswizzleSignature), kUnswizzleDoc);
  module.def("requantize", &RequantizeTensor, nb::arg("q").none(), nb::arg("scheme"),
             nb::arg("rowwise") = true, nb::arg("columnwise") = false,
             nb::arg("between") = DTypeObject(DType::kFloat32), nb::arg("options"),
             nb::sig(kRequantizeSignature), kRequantizeDoc);
  const std::string hadamard_signature = fmt::format(kHadamardSignature, kHadamardSignMask);
  module.def("hadamard_transform", &HadamardArray, nb::arg("x").noconvert().none(),
             nb::arg("sign_mask") = kHadamardSignMask, nb::arg("out").noconvert() = nb::none(),
             nb::arg("options"), nb::sig(hadamard_signature.c_str()), kHadamardDoc);
  module.def("block_scales_to_mxfp8", &BlockScalesArray, nb::arg("q").none(),
             nb::arg("columnwise") = false, nb::sig(kBlockScalesSignature), kBlockScalesDoc);
  module.def("empty", &EmptyTensor, nb::arg("shape"), nb::arg("scheme"), nb::arg("rowwise") = true,
             nb::arg("columnwise") = false, nb::arg("dtype") = DTypeObject(DType::kFloat32),
             nb::arg("options"), nb::sig(kEmptySignature), kEmptyDoc);
}

}  // namespace narrowfloat::python
