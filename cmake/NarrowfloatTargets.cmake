# nf_library() and nf_test() make the targets of the library's folders and of their tests. nf_flags has the flags; users
# of the library get them too. nf_warnings has the warnings; users do not get them.
include(GNUInstallDirs)

add_library(nf_flags INTERFACE)
target_compile_features(nf_flags INTERFACE cxx_std_20)
target_include_directories(nf_flags INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# Contraction changes results: by default, g++ fuses a*b+c if the processor has FMA. Programs that include the installed
# headers compile the same inline functions, so the target exports the flag.
target_compile_options(nf_flags INTERFACE -ffp-contract=off)

add_library(nf_warnings INTERFACE)
target_compile_options(nf_warnings INTERFACE -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow
  $<$<BOOL:${NF_WERROR}>:-Werror>)

# The instruction sets of the kernels, best first, by Highway's names. The scalar target stays as the baseline and is
# the reference backend; EMU128 would be a second scalar target. An entry is "name|bit|flag": Highway's bit for the
# target, and its flag in /proc/cpuinfo. SSE2, SSSE3, AVX3_ZEN4, AVX3_SPR and AVX10_2 are not built; they are skipped by
# their bits, because older releases of Highway have no names for them.
set(NF_INSTRUCTION_SETS "")
set(NF_SIMD_DEFINITIONS HWY_WANT_AVX3_DL HWY_BROKEN_EMU128=1)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(NF_SKIPPED_TARGETS "((1LL<<14)|(1LL<<12)|(1LL<<6)|(1LL<<5)|(1LL<<4))")
  set(NF_NUMBERED_SETS "AVX3_DL|7|avx512_vbmi2" "AVX3|8|avx512bw" "AVX2|9|avx2" "SSE4|11|sse4_2")
  set(NF_CPUINFO "")
  if(EXISTS /proc/cpuinfo)
    file(READ /proc/cpuinfo NF_CPUINFO)
  endif()
  foreach(set IN LISTS NF_NUMBERED_SETS)
    string(REPLACE "|" ";" set "${set}")
    list(GET set 0 name)
    list(GET set 2 flag)
    list(APPEND NF_INSTRUCTION_SETS ${name})
    if(NOT NF_NATIVE_INSTRUCTION_SET AND NF_CPUINFO MATCHES "${flag}")
      set(NF_NATIVE_INSTRUCTION_SET ${name})
    endif()
  endforeach()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  # NEON without AES stays: it is the only target without attributes on functions. Highway before 1.0.4 has one NEON
  # target, which needs the AES attribute if targets are chosen at run time. The other macro disables that choice.
  include(CheckCXXSymbolExists)
  set(CMAKE_REQUIRED_LIBRARIES hwy::hwy)
  check_cxx_symbol_exists(HWY_NEON_WITHOUT_AES hwy/detect_targets.h NF_HWY_HAS_NEON_WITHOUT_AES)
  unset(CMAKE_REQUIRED_LIBRARIES)
  set(NF_SKIPPED_TARGETS "HWY_SVE|HWY_SVE2|HWY_SVE_256")
  if(NF_SVE)
    set(NF_INSTRUCTION_SETS SVE2_128 NEON)
    if(NF_HWY_HAS_NEON_WITHOUT_AES)
      string(APPEND NF_SKIPPED_TARGETS "|HWY_NEON_WITHOUT_AES")
    endif()
  else()
    string(APPEND NF_SKIPPED_TARGETS "|HWY_SVE2_128")
    if(NF_HWY_HAS_NEON_WITHOUT_AES)
      string(APPEND NF_SKIPPED_TARGETS "|HWY_NEON")
      set(NF_INSTRUCTION_SETS NEON_WITHOUT_AES)
    else()
      list(APPEND NF_SIMD_DEFINITIONS TOOLCHAIN_MISS_SYS_AUXV_H)
      set(NF_INSTRUCTION_SETS NEON)
    endif()
  endif()
  set(NF_NATIVE_INSTRUCTION_SET ${NF_INSTRUCTION_SETS})
else()
  list(APPEND NF_SIMD_DEFINITIONS HWY_COMPILE_ONLY_SCALAR)
endif()

# nf_enable_targets(<target> <scope> <instruction sets>): enables only these sets and the scalar target in Highway.
function(nf_enable_targets target scope sets)
  set(disabled ${NF_SKIPPED_TARGETS})
  foreach(set IN LISTS NF_NUMBERED_SETS)
    string(REPLACE "|" ";" set "${set}")
    list(GET set 0 name)
    list(GET set 1 bit)
    if(NOT name IN_LIST sets)
      string(APPEND disabled "|(1LL<<${bit})")
    endif()
  endforeach()
  target_compile_definitions(${target} ${scope} "$<BUILD_INTERFACE:${NF_SIMD_DEFINITIONS}>")
  if(disabled)
    target_compile_definitions(${target} ${scope} "$<BUILD_INTERFACE:HWY_DISABLED_TARGETS=(${disabled})>")
  endif()
endfunction()

if(NF_NATIVE_TARGET_ONLY)
  set(NF_INSTRUCTION_SETS ${NF_NATIVE_INSTRUCTION_SET})
endif()
add_library(nf_simd INTERFACE)
target_link_libraries(nf_simd INTERFACE hwy::hwy)
nf_enable_targets(nf_simd INTERFACE "${NF_INSTRUCTION_SETS}")

# nf_kernels(<target> <instruction sets> <sources>): compiles each source once per instruction set, to separate objects,
# with the target's definitions, flags and includes, and adds the objects to the target. A source is written for the one
# set in HWY_TARGET (cpu/parts-inl.h).
function(nf_kernels target sets sources)
  foreach(set IN LISTS sets)
    string(TOLOWER ${target}_${set} objects)
    add_library(${objects} OBJECT ${sources})
    target_compile_definitions(${objects} PRIVATE NF_HWY_TARGET=HWY_${set}
                                                  $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
    target_compile_options(${objects} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS>)
    target_include_directories(${objects} PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_compile_features(${objects} PRIVATE cxx_std_20)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()

# nf_precompile(<target> [SHARED] [<headers>]): precompiles, for a target of many files, the headers of the standard
# library and of fmt that most files include, and `headers`: reading them takes half of the time of a short file. With
# SHARED, the target uses the precompiled header of nf_headers, and must be compiled with the same flags. Only for g++:
# clang++ compiles each file with its own includes alone. Not for a ccache without the sloppiness `pch_defines`, which
# the Makefile sets: it would cache no file.
set(NF_PRECOMPILE OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU
   AND (NOT CMAKE_CXX_COMPILER_LAUNCHER MATCHES ccache OR "$ENV{CCACHE_SLOPPINESS}" MATCHES pch_defines))
  set(NF_PRECOMPILE ON)
endif()
set(NF_COMMON_HEADERS
    <algorithm> <filesystem> <fmt/format.h> <functional> <map> <optional> <span> <string> <vector>)
function(nf_precompile target)
  cmake_parse_arguments(ARG "SHARED" "" "" ${ARGN})
  if(NOT NF_PRECOMPILE)
    return()
  elseif(NOT ARG_SHARED)
    target_precompile_headers(${target} PRIVATE ${NF_COMMON_HEADERS} ${ARG_UNPARSED_ARGUMENTS})
    return()
  elseif(NOT TARGET nf_headers)
    file(CONFIGURE OUTPUT headers.cc CONTENT "")
    add_library(nf_headers OBJECT ${CMAKE_CURRENT_BINARY_DIR}/headers.cc)
    target_link_libraries(nf_headers PRIVATE nf_flags nf_warnings fmt::fmt)
    target_precompile_headers(nf_headers PRIVATE ${NF_COMMON_HEADERS})
  endif()
  target_precompile_headers(${target} REUSE_FROM nf_headers)
endfunction()

# nf_library(<folder> SOURCES ... DEPENDS <folders and imported targets> [PRIVATE <targets>]): one target per folder,
# nf_<folder>. A folder without sources is an interface library. All installed targets are in the export set.
function(nf_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE" ${ARGN})
  set(scope INTERFACE)
  if(ARG_SOURCES)
    add_library(nf_${folder} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
    target_link_libraries(nf_${folder} PRIVATE ${ARG_PRIVATE})
    target_link_libraries(nf_${folder} PUBLIC nf_flags PRIVATE $<BUILD_INTERFACE:nf_warnings>)
  else()
    add_library(nf_${folder} INTERFACE)
    target_link_libraries(nf_${folder} INTERFACE nf_flags)
  endif()
  foreach(dependency IN LISTS ARG_DEPENDS)
    if(TARGET nf_${dependency})
      target_link_libraries(nf_${folder} ${scope} nf_${dependency})
    else()
      target_link_libraries(nf_${folder} ${scope} ${dependency})
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY NF_INSTALLED_TARGETS nf_${folder})
endfunction()

# The programs that `make check` builds and runs: unit tests of the core that take seconds.
if(NF_BUILD_TESTS)
  add_custom_target(quick_tests)
endif()

# Flags for code with a negligible run time: -O1 compiles it in three quarters of the time of -O3.
set(NF_FEW_OPTIMIZATIONS $<$<CONFIG:Release>:-O1>)
add_library(nf_few_optimizations INTERFACE)
target_compile_options(nf_few_optimizations INTERFACE ${NF_FEW_OPTIMIZATIONS})

# nf_test_headers(): the precompiled headers of nf_test, one per optimization level of tests. Without them, reading
# GoogleTest and fmt takes 2 of the 4 to 6 seconds of a test. Adds nothing if NF_PRECOMPILE is OFF.
function(nf_test_headers)
  if(NOT NF_PRECOMPILE)
    return()
  endif()
  file(CONFIGURE OUTPUT test_headers.cc CONTENT "int main() {}\n")
  foreach(optimized FALSE TRUE)
    set(name nf_test_headers_${optimized})
    add_executable(${name} EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/test_headers.cc)
    nf_test_flags(${name} ${optimized})
    target_precompile_headers(${name} PRIVATE <gtest/gtest.h> <fmt/format.h>)
  endforeach()
endfunction()

# nf_test_flags(<name> <optimized>): what a program and its precompiled header have in common.
function(nf_test_flags name optimized)
  target_link_libraries(${name} PRIVATE nf_flags nf_warnings GTest::gtest GTest::gtest_main fmt::fmt)
  if(optimized)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O2>)
  else()
    target_link_libraries(${name} PRIVATE nf_few_optimizations)
  endif()
endfunction()

# nf_test(<name> SOURCES ... DEPENDS ... LABELS ... [TIMEOUT <seconds>] [OPTIMIZED]): a GoogleTest program, one ctest
# entry per program. TIMEOUT is 600 by default. The label `quick` makes it a part of `make check`. OPTIMIZED is for
# programs with computations that take seconds: they are compiled with -O2, because compiling them with -O3 takes a
# quarter longer.
function(nf_test name)
  if(NOT NF_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "OPTIMIZED" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  nf_test_flags(${name} ${ARG_OPTIMIZED})
  if(TARGET nf_test_headers_${ARG_OPTIMIZED})
    target_precompile_headers(${name} REUSE_FROM nf_test_headers_${ARG_OPTIMIZED})
  endif()
  foreach(dependency IN LISTS ARG_DEPENDS)
    if(TARGET nf_${dependency})
      target_link_libraries(${name} PRIVATE nf_${dependency})
    else()
      target_link_libraries(${name} PRIVATE ${dependency})
    endif()
  endforeach()
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(quick IN_LIST ARG_LABELS)
    add_dependencies(quick_tests ${name})
  endif()
endfunction()
