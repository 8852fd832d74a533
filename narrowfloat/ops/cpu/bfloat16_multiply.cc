// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/bfloat16_multiply.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr char kModule[] = "libnarrowfloat_onednn.so";
constexpr char kVariable[] = "NF_ONEDNN_MODULE";
constexpr char kSymbol[] = "narrowfloat_multiply_bfloat16";
// The OpenMP runtime that oneDNN uses, unless it was built for another one.
constexpr char kOpenMp[] = "libgomp.so.1";

std::string_view FileName(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

/// Returns the path of a loaded OpenMP runtime, or an empty text. Wheels rename their runtimes.
std::string LoadedOpenMp() {
  std::string found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* path) {
        const std::string_view name = FileName(info->dlpi_name);
        for (const std::string_view runtime : {"libgomp", "libiomp5", "libomp"}) {
          if (!name.starts_with(runtime)) continue;
          *static_cast<std::string*>(path) = info->dlpi_name;
          return 1;
        }
        return 0;
      },
      &found);
  return found;
}

/// Checks that the process has no other OpenMP runtime than oneDNN's: each runtime starts its own
/// threads. Errors: Unsupported if it has.
void CheckOpenMp() {
  const std::string loaded = LoadedOpenMp();
  if (loaded.empty()) return;
  if (void* own = dlopen(kOpenMp, RTLD_LAZY | RTLD_NOLOAD)) {
    dlclose(own);
    return;
  }
  throw Unsupported(fmt::format(
      "qgemm: mode 'fast' needs a process without another OpenMP runtime than oneDNN's {}, got {}",
      kOpenMp, loaded));
}

/// Returns the path of the program or library that this function is linked into; an empty text for
/// a relative path, which depends on the process's folder at load time.
std::string OwnPath() {
  Dl_info info{};
  void* object = nullptr;
  if (dladdr1(reinterpret_cast<const void*>(&LoadBFloat16Multiply), &info, &object,
              RTLD_DL_LINKMAP) == 0)
    return "";
  std::string path = static_cast<const link_map*>(object)->l_name;
  if (path.empty()) {  // the program; dladdr gives the name it was called by, as "narrowfloat"
    std::error_code error;
    path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  }
  return path.starts_with('/') ? path : "";
}

std::vector<std::string> Candidates() {
  if (const char* given = std::getenv(kVariable); given != nullptr && *given != '\0')
    return {given};
  std::vector<std::string> paths;
  if (const std::string own = OwnPath(); !own.empty())
    paths.push_back(own.substr(0, own.rfind('/') + 1) + kModule);
  paths.emplace_back(kModule);
  return paths;
}

BFloat16MultiplyFn Load() {
  CheckOpenMp();
  std::string reason;
  for (const std::string& path : Candidates()) {
    if (void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      if (void* symbol = dlsym(module, kSymbol))
        return reinterpret_cast<BFloat16MultiplyFn>(symbol);
    }
    reason += fmt::format("{}{}", reason.empty() ? "" : "; ", dlerror());
  }
  throw Unsupported(fmt::format(
      "qgemm: mode 'fast' needs oneDNN (Debian and Ubuntu: libdnnl2) and the module {}, "
      "whose path may be in {}, got: {}",
      kModule, kVariable, reason));
}

}  // namespace

BFloat16MultiplyFn LoadBFloat16Multiply() {
  static std::mutex mutex;
  static BFloat16MultiplyFn loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (loaded == nullptr) loaded = Load();
  return loaded;
}

}  // namespace narrowfloat
