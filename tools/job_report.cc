// SPDX-License-Identifier: Apache-2.0
#include "tools/job_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "tools/text.h"

namespace narrowfloat::tools {

Result JobReport(const JobResult& job, const std::string& rewritten, Json first_keys) {
  const double bits = job.parameters == 0 ? 0.0
                                          : 8.0 * static_cast<double>(job.bytes_after) /
                                                static_cast<double>(job.parameters);
  const double rate = static_cast<double>(job.worked_bytes) / std::max(job.seconds, 1e-9) / 1e9;
  Json left_out = Json::array();
  for (const LeftOut& file : job.left_out) {
    left_out.push_back({{"name", file.name}, {"reason", file.reason}});
  }
  Result result;
  result.json = std::move(first_keys);
  result.json.update(Json{{"tensors_" + rewritten, job.tensors_rewritten},
                          {"tensors_copied", job.tensors_copied},
                          {"tensors_dropped", job.tensors_dropped},
                          {"bytes_before", job.bytes_before},
                          {"bytes_after", job.bytes_after},
                          {"parameters", job.parameters},
                          {"bits_per_parameter", bits},
                          {"files", job.files},
                          {"files_written", job.files_written},
                          {"files_skipped", job.files_skipped},
                          {"complete", job.complete},
                          {"left_out", left_out},
                          {"removed", job.removed},
                          {"notes", job.notes},
                          {"seconds", job.seconds},
                          {"gb_per_second", rate}});
  result.text = fmt::format(
      "{} {}, {} copied\n{} -> {}, {:.2f} bits per parameter\n{} of {} written, {} "
      "already there{}\n",
      CountText(job.tensors_rewritten, "tensor"), rewritten, job.tensors_copied,
      BytesText(static_cast<double>(job.bytes_before)),
      BytesText(static_cast<double>(job.bytes_after)), bits, job.files_written,
      CountText(job.files, "file"), job.files_skipped,
      job.complete ? "" : "; other parts are still to come");
  if (job.tensors_dropped > 0) {
    result.text +=
        fmt::format("{} dropped: scales of activations or of a KV cache, zero points, or markers\n",
                    CountText(job.tensors_dropped, "tensor"));
  }
  if (!job.removed.empty()) {
    result.text += fmt::format("removed from OUT, where another checkpoint left them: {}\n",
                               Escaped(fmt::format("{}", fmt::join(job.removed, ", "))));
  }
  if (job.files_written > 0)
    result.text += fmt::format("{:.2f} s, {:.2f} GB/s\n", job.seconds, rate);
  return result;
}

}  // namespace narrowfloat::tools
