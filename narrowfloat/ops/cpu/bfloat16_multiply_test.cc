// SPDX-License-Identifier: Apache-2.0
// Tests the paths at which mode `fast` searches for oneDNN's module.
#include "narrowfloat/ops/cpu/bfloat16_multiply.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr int kCannotRun = 77;  // exit status of a child if the system cannot run the program

// Disabled, because the next test runs it in other processes.
TEST(ModuleTest, DISABLED_LooksBesideThisProgram) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  try {
    LoadBFloat16Multiply();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find((folder / "libnarrowfloat_onednn.so").string()),
              std::string::npos)
        << error.what();
  }
}

// Runs the test above in processes with a name (argv[0]) that is not the program's path.
TEST(ModuleTest, LooksBesideAProgramOfAnyName) {
  for (const char* name : {"fast_gemm_test", "./fast_gemm_test"}) {
    const pid_t child = fork();
    if (child == 0) {
      unsetenv("NF_ONEDNN_MODULE");
      if (chdir("/") == 0)
        execl("/proc/self/exe", name, "--gtest_also_run_disabled_tests",
              "--gtest_filter=ModuleTest.DISABLED_LooksBesideThisProgram", nullptr);
      _exit(errno == ENOEXEC ? kCannotRun : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotRun)
      GTEST_SKIP() << "an emulator runs this program, whose file the kernel cannot run";
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << name;
  }
}

}  // namespace
}  // namespace narrowfloat
