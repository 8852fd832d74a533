// SPDX-License-Identifier: Apache-2.0
#include "tools/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "narrowfloat/io/file.h"
#include "narrowfloat/tensor/error.h"
#include "tools/folder_lock.h"
#include "tools/input_files.h"
#include "tools/interrupt.h"
#include "tools/other_checkpoint.h"
#include "tools/output_folder.h"
#include "tools/shard_plan.h"
#include "tools/side_files.h"
#include "tools/standard_error.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;

class Job {
 public:
  Job(const io::Checkpoint& in, const JobOutput& out, TensorRewriter& rewriter)
      : in_(in), out_(out.path), rewriter_(rewriter), plans_(PlanShards(in, out.path, rewriter)) {
    const std::vector<std::size_t> assigned = AssignParts(in, out.part.count);
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      if (assigned[i] == out.part.number) mine_.push_back(&plans_[i]);
    }
    if (in.folder()) side_files_ = PlanSideFiles(in, out.path, out.companions);
    mark_ = MarkText(plans_);
    result_.left_out = side_files_.left_out;
    CheckTakesSome();
    if (in.index()) index_text_ = IndexText();
    overwrite_ = out.overwrite;
    if (!HasFiles()) return;
    const InputFiles files = FilesOfInput();
    const std::string replacer = fmt::format("{}: OUT", rewriter.Verb());
    for (const fs::path& target : Targets()) files.CheckSpared(replacer, target);
    if (!overwrite_) CheckReplacesNothing();
    if (!in.folder()) return;
    for (const std::string& name : FindOthers()) files.CheckSpared(replacer, out_ / name);
  }

  /// Returns whether this part of the job writes files; there may be more parts than files.
  bool HasFiles() const { return std::ranges::any_of(mine_, &ShardPlan::IsWritten); }

  JobResult Run() {
    std::uint64_t total = 0;
    for (const ShardPlan* plan : mine_) total += plan->shard->file.header().DataBytes();
    if (HasFiles()) {
      io::RemoveLeftovers(in_.folder() ? out_ : io::FolderOf(out_));
      if (in_.folder()) {
        const FolderLock lock(out_);
        Mark();
      }
    }
    NameLeftOut();
    progress_.emplace(rewriter_.Verb(), total);
    result_.files = static_cast<std::size_t>(std::ranges::count_if(mine_, &ShardPlan::IsWritten));
    for (const ShardPlan* plan : mine_) RunShard(*plan);
    result_.complete = HasFiles() && IsComplete();
    if (in_.folder() && result_.complete) FinishFolder();
    // Another part may have finished the folder in the meantime, and removed the records.
    if (!result_.complete) result_.complete = HasAllTargets();
    result_.worked_bytes = progress_->worked_bytes();
    result_.seconds = progress_->Seconds();
    progress_.reset();
    return result_;
  }

  const std::string& mark() const { return mark_; }

  std::string DoneText() const {
    return fmt::format("{} of {} files done", result_.files_written + result_.files_skipped,
                       result_.files);
  }

 private:
  void CheckTakesSome() const {
    const bool takes = std::ranges::any_of(in_.tensors(), [&](const io::TensorLocation& location) {
      return rewriter_.Rewrites(*location.tensor);
    });
    if (takes) return;
    throw InvalidArgument(fmt::format("{0}: {1} must have at least one tensor to {0}, got none",
                                      rewriter_.Verb(), in_.path().string()));
  }

  /// Returns the files that the whole job writes, including other parts' files.
  std::vector<fs::path> Targets() const {
    std::vector<fs::path> targets;
    for (const ShardPlan& plan : plans_) {
      if (plan.IsWritten()) targets.push_back(plan.out);
    }
    for (const fs::path& file : side_files_.copied) targets.push_back(out_ / file);
    for (const auto& [name, text] : side_files_.written) targets.push_back(out_ / name);
    if (in_.index()) targets.push_back(out_ / in_.index()->first);
    return targets;
  }

  /// Returns the files of IN. Its links may point to OUT, or one folder may be in the other.
  InputFiles FilesOfInput() const {
    InputFiles files;
    for (const io::Shard& shard : in_.shards()) files.Add(shard.file.path());
    if (!in_.folder()) return files;
    if (in_.index()) files.Add(*in_.folder() / in_.index()->first);
    for (const fs::path& file : side_files_.copied) files.Add(*in_.folder() / file);
    for (const auto& [name, text] : side_files_.written) files.Add(*in_.folder() / name);
    for (const LeftOut& file : side_files_.left_out) files.Add(*in_.folder() / file.name);
    return files;
  }

  /// Returns whether this part and the others have written all files of the input.
  bool IsComplete() const {
    return std::ranges::all_of(plans_, [&](const ShardPlan& plan) {
      return !plan.IsWritten() || std::ranges::find(mine_, &plan) != mine_.end() ||
             IsFinished(plan);
    });
  }

  /// Returns whether the other parts have finished the result, and removed its records. Compares
  /// headers, because a part without files does not reject an older result in OUT.
  bool HasAllTargets() const {
    if (in_.folder() && HasMark()) return false;
    const auto is_there = [](const ShardPlan& plan) {
      return !plan.IsWritten() || HasPlannedHeader(plan);
    };
    return std::ranges::all_of(plans_, is_there) &&
           std::ranges::all_of(Targets(), [](const fs::path& file) { return fs::exists(file); });
  }

  /// Ensures that the folder has the mark of this job: another part that stopped before it wrote a
  /// file removes the mark. Rejects the mark of another job, which with --overwrite may appear at
  /// any time. An error removes no mark, because other parts may rely on it. Requires: the folder
  /// is locked.
  void Mark() {
    const fs::path path = io::UnfinishedMark(out_);
    if (overwrite_ && !marked_) {
      io::WriteSmallFile(path, mark_);
    } else if (HasMark()) {
      CheckMark(out_, mark_, rewriter_.Verb());
    } else {
      CheckKept();
      if (!overwrite_) CheckReplacesNothing();
      if (!io::WriteNewFile(path, mark_)) CheckMark(out_, mark_, rewriter_.Verb());
    }
    marked_ = true;
  }

  /// Rejects a folder in which another job, with --overwrite, has replaced a file of this run.
  void CheckKept() const {
    for (const ShardPlan* plan : done_) {
      if (IsFinished(*plan)) continue;
      throw InvalidArgument(
          fmt::format("{}: {} must stay as this job wrote it, got a file of another job",
                      rewriter_.Verb(), plan->out.string()));
    }
  }

  bool HasMark() const {
    std::error_code ignored;
    return fs::exists(fs::symlink_status(io::UnfinishedMark(out_), ignored));
  }

  /// Rejects a folder with files of others, or of a job that has ended. Checks the mark before the
  /// files, and again after them: another part may begin in between.
  void CheckReplacesNothing() const {
    const auto is_of_this_job = [&] {
      if (!in_.folder() || !HasMark()) return false;
      CheckMark(out_, mark_, rewriter_.Verb());
      return true;
    };
    if (is_of_this_job()) return;
    const auto target = FirstOfOthers();
    if (target && !is_of_this_job()) RefuseToReplace(*target);
  }

  /// Returns a file that this job would replace but did not write.
  std::optional<fs::path> FirstOfOthers() const {
    for (fs::path& target : Targets()) {
      if (!fs::exists(fs::symlink_status(target))) continue;
      const auto plan = std::ranges::find(plans_, target, &ShardPlan::out);
      if (plan == plans_.end() || !in_.folder() || !IsFinished(*plan)) return std::move(target);
    }
    return std::nullopt;
  }

  [[noreturn]] void RefuseToReplace(const fs::path& target) const {
    throw InvalidArgument(fmt::format("{}: {} exists, --overwrite is needed to replace it",
                                      rewriter_.Verb(), target.string()));
  }

  /// Returns the files of OUT that readers would take for parts of another checkpoint.
  std::vector<std::string> FindOthers() const {
    const std::vector<fs::path> targets = Targets();
    const auto index = in_.index() ? std::optional(in_.index()->first) : std::nullopt;
    OtherFiles others = FindOtherFiles(out_, {targets.begin(), targets.end()}, index);
    if (others.unknown) {
      throw InvalidArgument(
          fmt::format("{}: {} must have no other safetensors file beside the result, which has no "
                      "index, got {}",
                      rewriter_.Verb(), out_.string(), *others.unknown));
    }
    if (!overwrite_ && !others.replaced.empty()) {
      throw InvalidArgument(
          fmt::format("{}: {} must have no files of another checkpoint, got {}; --overwrite "
                      "removes them",
                      rewriter_.Verb(), out_.string(), others.replaced.front()));
    }
    return std::move(others.replaced);
  }

  /// Removes these files, and their records of an unfinished job.
  void RemoveOthers() {
    for (const std::string& name : FindOthers()) {
      std::error_code error;
      fs::remove(out_ / name, error);
      if (error) {
        throw IoError(fmt::format("write: {}, {}", (out_ / name).string(), error.message()));
      }
      RemoveRecord(out_ / name);
      result_.removed.push_back(name);
    }
  }

  void NameLeftOut() const {
    for (const LeftOut& file : result_.left_out) {
      PrintToStderr("{}: left out: {} ({})\n", rewriter_.Verb(), Escaped(file.name), file.reason);
    }
  }

  void RunShard(const ShardPlan& plan) {
    CheckInterrupt();
    Count(plan);
    if (!plan.IsWritten()) return progress_->Skip(plan.shard->file.header().DataBytes());
    if (in_.folder() && IsFinished(plan)) {
      progress_->Skip(plan.shard->file.header().DataBytes());
      ++result_.files_skipped;
      done_.push_back(&plan);
      return;
    }
    if (in_.folder()) RemoveRecord(plan.out);
    io::SafetensorsWriter writer(plan.out, plan.contents.tensors, plan.contents.metadata);
    for (const io::StoredTensor& tensor : plan.shard->tensors) {
      if (rewriter_.Drops(tensor)) continue;
      if (rewriter_.Rewrites(tensor)) {
        RewriteTensor(*plan.shard, tensor, writer);
      } else {
        CopyTensor(*plan.shard, tensor, writer);
      }
    }
    CheckInterrupt();
    Finish(plan, writer);
    ++result_.files_written;
  }

  /// Moves a file to its path. One that appeared during the run is replaced only with --overwrite.
  void Finish(const ShardPlan& plan, io::SafetensorsWriter& writer) {
    if (in_.folder()) {
      writer.FlushToDisk();  // before the lock, because other parts wait for it
      const FolderLock lock(out_);
      Mark();
      writer.Finish();
      WriteRecord(plan);
      done_.push_back(&plan);
    } else if (overwrite_) {
      writer.Finish();
    } else if (!writer.FinishNew()) {
      RefuseToReplace(plan.out);
    }
  }

  void Count(const ShardPlan& plan) {
    for (const io::StoredTensor& tensor : plan.shard->tensors) {
      if (rewriter_.Drops(tensor)) {
        ++result_.tensors_dropped;
        continue;
      }
      ++(rewriter_.Leaves(tensor)     ? result_.tensors_left
         : rewriter_.Rewrites(tensor) ? result_.tensors_rewritten
                                      : result_.tensors_copied);
      result_.parameters += FlattenShape(tensor.shape()).Size();
    }
    result_.bytes_before += plan.shard->file.header().DataBytes();
    for (const io::TensorEntry& entry : plan.contents.tensors) result_.bytes_after += entry.Bytes();
  }

  /// Reads `out.size()` bytes of an entry in pieces, and checks for a signal in between.
  void Read(const io::Shard& shard, const io::TensorEntry& entry, std::uint64_t offset,
            std::span<std::byte> out) {
    while (!out.empty()) {
      CheckInterrupt();
      const auto piece = out.first(std::min<std::uint64_t>(out.size(), kPieceBytes));
      shard.file.Read(entry, offset, piece);
      progress_->Add(piece.size(), entry.name);
      offset += piece.size();
      out = out.subspan(piece.size());
    }
  }

  void RewriteTensor(const io::Shard& shard, const io::StoredTensor& tensor,
                     io::SafetensorsWriter& writer) {
    std::span<std::byte> rest = input_.Take(tensor.Bytes());
    std::vector<std::span<const std::byte>> buffers;
    for (std::size_t i = 0; i < tensor.entries.size(); ++i) {
      const io::TensorEntry& entry = tensor.entries[i];
      Read(io::HomeOf({&shard, &tensor}, i), entry, 0, rest.first(entry.Bytes()));
      buffers.push_back(rest.first(entry.Bytes()));
      rest = rest.subspan(entry.Bytes());
    }
    rewriter_.Rewrite(tensor, buffers, writer);
  }

  void CopyTensor(const io::Shard& shard, const io::StoredTensor& tensor,
                  io::SafetensorsWriter& writer) {
    for (std::size_t i = 0; i < tensor.entries.size(); ++i) {
      const io::TensorEntry& entry = tensor.entries[i];
      for (std::uint64_t at = 0; at < entry.Bytes(); at += kPieceBytes) {
        const auto piece = input_.Take(std::min(kPieceBytes, entry.Bytes() - at));
        Read(io::HomeOf({&shard, &tensor}, i), entry, at, piece);
        writer.Append(entry.name, piece);
      }
    }
  }

  void FinishFolder() {
    const FolderLock lock(out_);
    if (HasAllTargets()) return;  // another part has finished the folder
    CheckMark(out_, mark_, rewriter_.Verb());
    CheckKept();
    CopySideFiles(side_files_, *in_.folder(), out_);
    if (in_.index()) io::WriteSmallFile(out_ / in_.index()->first, index_text_);
    RemoveOthers();
    // Removes the mark last: if the run ends before that, the job is still unfinished.
    for (const ShardPlan& plan : plans_) RemoveRecord(plan.out);
    const fs::path mark = io::UnfinishedMark(out_);
    std::error_code error;
    fs::remove(mark, error);
    if (!error || !HasMark()) return;  // another part may have removed it
    throw IoError(fmt::format("write: {}, cannot be removed, though all files are written: {}",
                              mark.string(), error.message()));
  }

  /// Returns the text of the result's index. Errors: InvalidArgument if no command could read it.
  std::string IndexText() const {
    const auto& [name, of_input] = *in_.index();
    io::ShardIndex index;
    index.other_metadata = of_input.other_metadata;
    for (const ShardPlan& plan : plans_) {
      for (const io::TensorEntry& entry : plan.contents.tensors) {
        index.tensors[plan.shard->name].push_back(entry.name);
        index.total_size += entry.Bytes();
      }
    }
    return io::PrintIndex(io::IndexSource(out_ / name), index);
  }

  const io::Checkpoint& in_;
  const fs::path& out_;
  TensorRewriter& rewriter_;
  SideFiles side_files_;
  std::vector<ShardPlan> plans_;
  std::vector<const ShardPlan*> mine_;  // this part's plans, in plans_
  std::vector<const ShardPlan*> done_;  // those of mine_ that are in a folder, with a record
  std::optional<Progress> progress_;
  ByteBuffer input_;
  std::string mark_;  // text of the folder's mark
  std::string index_text_;
  bool overwrite_ = false;
  bool marked_ = false;  // by this run
  JobResult result_;
};

void CheckOutput(const io::Checkpoint& in, const fs::path& out, const std::string& verb) {
  std::error_code ignored;
  const fs::path& source = in.folder() ? *in.folder() : in.path();
  if (fs::equivalent(source, out, ignored)) {
    throw InvalidArgument(
        fmt::format("{}: OUT must not be IN, got {} for both", verb, out.string()));
  }
  if (in.folder() && out.string().ends_with(io::kFileSuffix)) {
    throw InvalidArgument(
        fmt::format("{}: OUT must be a folder, as IN is, got {}", verb, out.string()));
  }
  const fs::file_status status = fs::status(out, ignored);
  if (!fs::exists(status)) return;
  if (in.folder() && !fs::is_directory(status)) {
    throw InvalidArgument(
        fmt::format("{}: OUT must be a folder, as IN is; {} is a file", verb, out.string()));
  }
  if (!in.folder() && !fs::is_regular_file(status)) {
    throw InvalidArgument(fmt::format(
        "{}: OUT must be a file, as IN is; {} is a folder or no regular file", verb, out.string()));
  }
}

}  // namespace

Part ParsePart(const std::string& text) {
  const std::size_t slash = text.find('/');
  Part part{0, 0};
  const auto parse = [](std::string_view digits, std::size_t& number) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return error == std::errc{} && end == digits.data() + digits.size();
  };
  if (slash == std::string::npos || !parse(std::string_view(text).substr(0, slash), part.number) ||
      !parse(std::string_view(text).substr(slash + 1), part.count) || part.number < 1 ||
      part.number > part.count) {
    throw InvalidArgument(fmt::format("--part must be i/N with i from 1 to N, got '{}'", text));
  }
  return part;
}

JobResult RunJob(const io::Checkpoint& in, const JobOutput& out, TensorRewriter& rewriter) {
  CheckOutput(in, out.path, rewriter.Verb());
  Job job(in, out, rewriter);
  std::optional<OutputFolder> folder;
  if (in.folder() && job.HasFiles()) folder.emplace(out.path, job.mark());
  try {
    CheckInterrupt();  // of a signal while the input was opened and planned
    return job.Run();
  } catch (const Interrupted& error) {
    throw Interrupted(fmt::format("{}: {}, {}, nothing unfinished was left in {}", rewriter.Verb(),
                                  error.what(), job.DoneText(), out.path.string()));
  }
}

}  // namespace narrowfloat::tools
