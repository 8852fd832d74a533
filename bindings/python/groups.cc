// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/stl/string_view.h>

#include <array>
#include <string>
#include <vector>

#include "bindings/python/docs.h"
#include "bindings/python/options.h"
#include "bindings/python/quantized_tensor.h"
#include "bindings/python/verbs.h"
#include "narrowfloat/ops/grouped.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::python {
namespace {

nb::list GroupedQuantizeArray(const nb::object& x, const nb::object& group_sizes,
                              std::string_view scheme, Flag rowwise, Flag columnwise,
                              const nb::kwargs& kwargs) {
  constexpr const char* kVerb = "grouped_quantize";
  const CallOptions options =
      ParseOptions(kVerb, scheme, rowwise, columnwise, kwargs, OptionScope::kSpecAndExecution);
  const ArrayView in = ViewInput(kVerb, x);
  const Shape sizes = ParseShape(kVerb, group_sizes, "group_sizes");
  CheckGroupRows(sizes, in.view);
  const auto cols = static_cast<std::int64_t>(FlattenShape(in.view.shape).cols);
  nb::list results;
  std::vector<TensorMemory> held;
  std::vector<QuantizedView> outs;
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    results.append(NewTensor(options.spec, {sizes[g], cols}, in.view.dtype,
                             options.IsNoop() ? Fill::kZero : Fill::kNone));
    auto& tensor = *nb::inst_ptr<QuantizedTensor>(results[g]);
    held.push_back(ViewWritableBuffers(kVerb, tensor));
    outs.push_back(held.back().view);
    if (tensor.spec.stochastic_rounding) tensor.spec.offset += g;
  }
  const nb::gil_scoped_release unlocked;
  GroupedQuantize(in.view, sizes, outs, options.MakeExecution());
  return results;
}

nb::str NameOf(Role role) {
  const std::string name(RoleName(role));
  return nb::str(name.c_str(), name.size());
}

nb::dict PlanGroups(const nb::object& shapes, std::string_view scheme, Flag rowwise,
                    Flag columnwise, const nb::kwargs& kwargs) {
  constexpr const char* kVerb = "plan_grouped";
  const QuantSpec spec =
      ParseOptions(kVerb, scheme, rowwise, columnwise, kwargs, OptionScope::kSpecOnly).spec;
  std::vector<Shape> groups;
  for (const nb::handle shape : shapes)
    groups.push_back(ParseShape(kVerb, nb::borrow<nb::object>(shape)));
  nb::dict result;
  for (const PackedBuffer& buffer : PlanGroupedQuantize(spec, groups).buffers) {
    nb::list slices;
    for (const GroupSlice& slice : buffer.groups)
      slices.append(nb::make_tuple(slice.offset, ShapeTuple(slice.shape)));
    nb::dict entry;
    entry["dtype"] = DTypeObject(buffer.whole.dtype);
    entry["size"] = buffer.whole.shape.front();
    entry["groups"] = slices;
    result[NameOf(buffer.whole.role)] = entry;
  }
  return result;
}

/// Returns tensors with arrays that are views of the groups' parts of the packed arrays.
nb::list GroupTensors(const GroupedPlan& plan, const std::vector<ConstTensorView>& ins,
                      const std::array<nb::object, kRoleCount>& packed) {
  nb::list tensors;
  for (std::size_t g = 0; g < plan.shapes.size(); ++g) {
    QuantizedTensor tensor{plan.spec, plan.shapes[g], ins[g].dtype, {}};
    if (tensor.spec.stochastic_rounding) tensor.spec.offset += g;
    for (const PackedBuffer& buffer : plan.buffers) {
      const GroupSlice& slice = buffer.groups[g];
      const nb::slice items(slice.offset, slice.offset + FlattenShape(slice.shape).Size());
      tensor.arrays[static_cast<std::size_t>(buffer.whole.role)] =
          packed[static_cast<std::size_t>(buffer.whole.storage)][items].attr("reshape")(
              ShapeTuple(slice.shape));
    }
    tensors.append(std::move(tensor));
  }
  return tensors;
}

nb::tuple GroupedQuantizePacked(const nb::object& tensors, std::string_view scheme, Flag rowwise,
                                Flag columnwise, const nb::kwargs& kwargs) {
  constexpr const char* kVerb = "grouped_quantize_packed";
  const CallOptions options =
      ParseOptions(kVerb, scheme, rowwise, columnwise, kwargs, OptionScope::kSpecAndExecution);
  std::vector<ArrayView> held;
  for (const nb::handle tensor : tensors) held.push_back(ViewInput(kVerb, tensor, "a group"));
  std::vector<ConstTensorView> ins;
  std::vector<Shape> shapes;
  for (const ArrayView& in : held) {
    ins.push_back(in.Input());
    shapes.push_back(in.view.shape);
  }
  const GroupedPlan plan = PlanGroupedQuantize(options.spec, shapes);
  std::array<nb::object, kRoleCount> packed;
  std::array<std::byte*, kRoleCount> memory{};
  nb::dict buffers;
  for (const PackedBuffer& buffer : plan.buffers) {
    const auto role = static_cast<std::size_t>(buffer.whole.role);
    if (buffer.whole.storage == buffer.whole.role) {
      packed[role] = NewArray(buffer.whole.dtype, buffer.whole.shape);
      const ArrayView array = ViewArrayOf(buffer.whole.dtype, kVerb, "a buffer", packed[role]);
      ZeroArray(array);
      memory[role] = array.view.data;
    }
    buffers[NameOf(buffer.whole.role)] = packed[static_cast<std::size_t>(buffer.whole.storage)];
  }
  {
    const nb::gil_scoped_release unlocked;
    GroupedQuantize(ins, BindGroups(plan, memory), options.MakeExecution());
  }
  return nb::make_tuple(GroupTensors(plan, ins, packed), buffers);
}

}  // namespace

void RegisterGroups(nb::module_& module) {
  module.def("grouped_quantize", &GroupedQuantizeArray, nb::arg("x").noconvert().none(),
             nb::arg("group_sizes"), nb::arg("scheme"), nb::arg("rowwise") = true,
             nb::arg("columnwise") = false, nb::arg("options"), nb::sig(kGroupedQuantizeSignature),
             kGroupedQuantizeDoc);
  module.def("plan_grouped", &PlanGroups, nb::arg("shapes"), nb::arg("scheme"),
             nb::arg("rowwise") = true, nb::arg("columnwise") = false, nb::arg("options"),
             nb::sig(kPlanGroupedSignature), kPlanGroupedDoc);
  module.def("grouped_quantize_packed", &GroupedQuantizePacked, nb::arg("tensors"),
             nb::arg("scheme"), nb::arg("rowwise") = true, nb::arg("columnwise") = false,
             nb::arg("options"), nb::sig(kGroupedQuantizePackedSignature),
             kGroupedQuantizePackedDoc);
}

}  // namespace narrowfloat::python
