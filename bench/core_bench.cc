// SPDX-License-Identifier: Apache-2.0
// Each kernel next to the stream that moves the same bytes, round-robin, minimum of 25: the share
// of the stream's speed that it reaches on this machine. Figures of different runs do not compare;
// shares do.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bench/options.h"

namespace narrowfloat::speed {

bool IsWanted(std::string_view backend, const Options& options) {
  // The reference is a specification, not a contender; it runs only if named.
  return options.backends.empty()
             ? backend != ScalarKernels().name
             : std::ranges::find(options.backends, backend) != options.backends.end();
}

bool IsWanted(const Workload& workload, const Options& options) {
  const auto named = [name = workload.Name()](const std::string& filter) {
    return name.find(filter) != std::string::npos;
  };
  return IsWanted(workload.backend, options) && std::ranges::all_of(options.filters, named);
}

namespace {

int Main(int argc, char** argv) {
  Options options;
  bool crossover = false, overhead = false, dbias = false, products = false;
  CLI::App app{"Share of its same-traffic stream that each kernel reaches"};
  app.add_option("--rows", options.rows)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--cols", options.cols, "a multiple of 1024")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--repetitions", options.repetitions)->capture_default_str();
  app.add_option("--filter", options.filters, "words that a kernel's name must hold, all of them")
      ->capture_default_str();
  app.add_option("--backend", options.backends, "tables to run; all but the reference by default");
  app.add_option("--data", options.data)
      ->transform(CLI::CheckedTransformer(std::vector<std::pair<std::string, Data>>{
          {"gaussian", Data::kGaussian}, {"wide", Data::kWide}, {"half-zero", Data::kHalfZero}}));
  app.add_option("--threads", options.threads, "threads of kernels and streams; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--compare-threads", options.compare_threads,
                 "run each kernel on so many threads too, and tell how many times as fast it is")
      ->check(CLI::PositiveNumber);
  app.add_option("--compare-offset", options.compare_offset,
                 "run each kernel on tensors that begin so many bytes past a cache line too, and "
                 "tell how many times as fast it is")
      ->check(CLI::Range(std::size_t{4}, Memory::kLargestOffset - 1))
      ->excludes("--compare-threads");
  CLI::Option* first =
      app.add_flag("--crossover", crossover,
                   "from which size on --compare-threads (all by default) beat --threads; takes "
                   "neither --rows nor --cols");
  app.add_flag("--overhead", overhead,
               "microseconds of a call on 32x32; takes no shape and no threads")
      ->excludes(first);
  app.add_flag("--dbias", dbias, "how much longer quantize_dbias takes than quantize, in turns")
      ->excludes(first);
  app.add_flag("--products", products,
               "GFLOP/s of products of quantized matrices; takes neither a shape nor a filter; the "
               "fast ones need NF_ONEDNN_MODULE")
      ->excludes(first);
  app.add_flag("--json", options.json, "one object instead of the table");
  CLI11_PARSE(app, argc, argv);

  if (crossover) {
    if (options.compare_threads == 0) options.compare_threads = static_cast<int>(ThreadCount({}));
    PrintCrossover(options);
  } else if (overhead) {
    PrintOverhead(options);
  } else if (dbias) {
    PrintDbias(options);
  } else if (products) {
    PrintProducts(options);
  } else {
    PrintShares(options);
  }
  return 0;
}

}  // namespace
}  // namespace narrowfloat::speed

int main(int argc, char** argv) {
  return narrowfloat::speed::Main(argc, argv);
}
