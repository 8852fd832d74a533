// SPDX-License-Identifier: Apache-2.0
// Google Benchmark over everything that the registry and the kernel tables list, in DRAM and in
// L2, next to a memcpy and to the stream that moves the same bytes.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <string>

#include "tools/speed/workload.h"

namespace narrowfloat::speed {
namespace {

struct Place {
  const char* name;
  Shape shape;
  Stores stores;
};
// 64 MiB of bfloat16; and 128 KiB of it, so that input and outputs fit a 1 MiB L2 in any type.
const Place kPlaces[] = {{"dram", {8192, 4096}, Stores::kNontemporal},
                         {"l2", {64, 1024}, Stores::kCached}};

void Report(benchmark::State& state, std::size_t elements, std::size_t bytes) {
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(elements));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

void RegisterMemcpy(const Memory& memory, const std::string& place, DType dtype) {
  const std::size_t bytes = FlattenShape(memory.shape()).Size() * ItemSize(dtype);
  const std::string name = place + "/memcpy/" + std::string(DTypeName(dtype));
  benchmark::RegisterBenchmark(name.c_str(), [&memory, bytes](benchmark::State& state) {
    for (auto step : state) {
      static_cast<void>(step);
      std::memcpy(memory.StreamOut(), memory.StreamIn(), bytes);
      benchmark::ClobberMemory();
    }
    Report(state, bytes, 2 * bytes);
  });
}

void RegisterWorkload(const Memory& memory, const Place& place, const Workload& workload) {
  const std::string kernel = std::string(place.name) + "/" + workload.Name();
  benchmark::RegisterBenchmark((kernel + "/" + std::string(workload.backend)).c_str(),
                               [&workload](benchmark::State& state) {
                                 for (auto step : state) {
                                   static_cast<void>(step);
                                   workload.run();
                                   benchmark::ClobberMemory();
                                 }
                                 Report(state, workload.elements, workload.Bytes());
                               });
  if (workload.backend != AvailableKernels().front()->name) return;  // one stream serves all
  benchmark::RegisterBenchmark(
      (kernel + "/stream").c_str(), [&workload, &memory, &place](benchmark::State& state) {
        for (auto step : state) {
          static_cast<void>(step);
          workload.RunStream(memory, {.threads = 1, .stores = place.stores});
          benchmark::ClobberMemory();
        }
        Report(state, workload.elements, workload.Bytes());
      });
}

}  // namespace
}  // namespace narrowfloat::speed

int main(int argc, char** argv) {
  using namespace narrowfloat;         // NOLINT(google-build-using-namespace)
  using namespace narrowfloat::speed;  // NOLINT(google-build-using-namespace)
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  // Registered benchmarks point into these.
  std::vector<std::unique_ptr<Memory>> memories;
  std::vector<std::unique_ptr<std::vector<Workload>>> workloads;
  for (const Place& place : kPlaces) {
    memories.push_back(std::make_unique<Memory>(place.shape, Data::kGaussian));
    workloads.push_back(
        std::make_unique<std::vector<Workload>>(MakeWorkloads(*memories.back(), {.threads = 1})));
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32})
      RegisterMemcpy(*memories.back(), place.name, dtype);
    for (const Workload& workload : *workloads.back())
      RegisterWorkload(*memories.back(), place, workload);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
