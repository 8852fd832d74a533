# CUDA kernels, compiled by nvcc for devices, and by the C++ compiler for the emulation in tests/cuda/emulation.
file(GLOB NF_CUDA_KERNELS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/narrowfloat/kernels/cuda/*.cu)
file(GLOB NF_CUDA_HOST CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/narrowfloat/ops/cuda/*.cc)
list(FILTER NF_CUDA_HOST EXCLUDE REGEX "_test\\.cc$")
# Compiled once per scheme, with NF_CUDA_SCHEME: the scheme's index in AllSchemes.
set(NF_CUDA_SCHEME_KERNELS ${PROJECT_SOURCE_DIR}/narrowfloat/kernels/cuda/scheme_kernels.cu)
list(REMOVE_ITEM NF_CUDA_KERNELS ${NF_CUDA_SCHEME_KERNELS})
# The index of the last scheme in kOwnSchemes (schemes/registry.h); if it is too small, linking fails.
set(NF_CUDA_LAST_SCHEME 12)

if(NF_CUDA)
  set(NF_CUDA_ARCHITECTURES "80;90;100;120" CACHE STRING
      "Compute capabilities that kernels are compiled for; later ones use the code of the last")
  find_package(CUDAToolkit REQUIRED)
endif()

# nf_nvcc(<object> <source> <flags>): compiles a source by nvcc. A custom command calls nvcc, since CMake 3.25 does not
# support C++20 for it. Contraction would change results, as in nf_flags.
function(nf_nvcc object source flags)
  set(targets "")
  foreach(architecture IN LISTS NF_CUDA_ARCHITECTURES)
    list(APPEND targets -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET NF_CUDA_ARCHITECTURES -1 last)
  list(APPEND targets -gencode arch=compute_${last},code=compute_${last})
  # A device of compute capability 9.0 or later runs machine code for its own major version, or code that the driver
  # compiles from the last architecture's PTX. If that is 9.0 or later, its kernels wait: see Start in launch.cuh.
  if(last GREATER_EQUAL 90)
    list(APPEND targets -DNF_CUDA_STARTS_EARLY)
  endif()
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -O3 -DNDEBUG
            --expt-relaxed-constexpr --fmad=false --Werror=all-warnings
            -Xcompiler=-ffp-contract=off,-fPIC,-fvisibility=hidden,-fvisibility-inlines-hidden ${targets} ${flags}
            -I${PROJECT_SOURCE_DIR} -MD -MF ${object}.d -c ${source} -o ${object}
    MAIN_DEPENDENCY ${source}
    DEPFILE ${object}.d
    VERBATIM)
endfunction()

# nf_cuda_kernels(<target>): adds the kernels, and CUDA's runtime as a static library, which loads without a driver.
function(nf_cuda_kernels target)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  file(MAKE_DIRECTORY ${folder})
  set(objects "")
  foreach(source IN LISTS NF_CUDA_KERNELS)
    cmake_path(GET source STEM name)
    nf_nvcc(${folder}/${name}.o ${source} "")
    list(APPEND objects ${folder}/${name}.o)
  endforeach()
  foreach(scheme RANGE ${NF_CUDA_LAST_SCHEME})
    nf_nvcc(${folder}/scheme_kernels_${scheme}.o ${NF_CUDA_SCHEME_KERNELS} -DNF_CUDA_SCHEME=${scheme})
    list(APPEND objects ${folder}/scheme_kernels_${scheme}.o)
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  target_sources(${target} PRIVATE ${objects})
  # Links by path, so that users of the installed library need no CUDAToolkit package.
  target_link_libraries(${target} PRIVATE ${CUDA_cudart_static_LIBRARY} rt dl pthread)
endfunction()

# nf_emulated_sources(<target> <scheme> <sources>): adds sources that CUDA's emulation runs on the CPU. <scheme> is an
# index, or empty.
function(nf_emulated_sources target scheme sources)
  target_sources(${target} PRIVATE ${sources})
  # The emulation's header is found before CUDA's own.
  target_include_directories(${target} BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tests/cuda/emulation)
  target_link_libraries(${target} PRIVATE nf_flags nf_warnings)
  # Loops are unrolled for devices; it does not matter if clang cannot unroll them for the CPU. Compiling kernels with
  # -O3 takes twice as long as with -O2.
  target_compile_options(${target} PRIVATE -Wno-unknown-pragmas -Wno-sign-conversion
                                           $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed> $<$<CONFIG:Release>:-O2>)
  foreach(source IN LISTS sources)
    if(source MATCHES "\\.cu$")
      # Kernels use int for the sizes of arrays, and g++ would warn about that.
      set_source_files_properties(${source} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++;-Wno-sign-conversion")
    endif()
  endforeach()
  if(NOT scheme STREQUAL "")
    target_compile_definitions(${target} PRIVATE NF_CUDA_SCHEME=${scheme})
  endif()
endfunction()
