# SPDX-License-Identifier: Apache-2.0
# Files of `cmake --install --component development`: headers, libraries, and the CMake package for
# find_package(narrowfloat). Included last, because nf_library() must have listed every target.
include(CMakePackageConfigHelpers)

get_property(NF_TARGETS GLOBAL PROPERTY NF_INSTALLED_TARGETS)
set(NF_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/narrowfloat)

# The one target that programs link: every folder's library, without the shared C face.
set(NF_LINKED ${NF_TARGETS})
list(REMOVE_ITEM NF_LINKED nf_c_api nf_c_api_shared)
add_library(nf_all INTERFACE)
target_link_libraries(nf_all INTERFACE ${NF_LINKED})
add_library(narrowfloat::narrowfloat ALIAS nf_all)
add_library(narrowfloat::c_api ALIAS nf_c_api_shared)
set_target_properties(nf_all PROPERTIES EXPORT_NAME narrowfloat)
set_target_properties(nf_c_api_shared PROPERTIES EXPORT_NAME c_api)

if(NOT NF_INSTALL)
  return()
endif()
install(TARGETS ${NF_TARGETS} nf_all nf_flags nf_simd EXPORT narrowfloat
        ARCHIVE COMPONENT development
        LIBRARY COMPONENT development NAMELINK_COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/narrowfloat/ ${PROJECT_BINARY_DIR}/include/narrowfloat/
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/narrowfloat COMPONENT development
        FILES_MATCHING PATTERN "*.h"
        PATTERN "*-inl.h" EXCLUDE PATTERN "*_testing.h" EXCLUDE PATTERN "testing.h" EXCLUDE
        # Private: headers of kernels, of backends, of the C face's implementation, and with the JSON parser.
        PATTERN "strict_json.h" EXCLUDE PATTERN "companion.h" EXCLUDE
        PATTERN "scalar" EXCLUDE PATTERN "backends" EXCLUDE PATTERN "cpu" EXCLUDE PATTERN "cuda" EXCLUDE
        PATTERN "c_api" EXCLUDE)

install(EXPORT narrowfloat NAMESPACE narrowfloat:: FILE narrowfloat-targets.cmake
        DESTINATION ${NF_PACKAGE_DIR} COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/narrowfloat-config.cmake.in
                              ${PROJECT_BINARY_DIR}/narrowfloat-config.cmake
                              INSTALL_DESTINATION ${NF_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/narrowfloat-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/narrowfloat-config.cmake
              ${PROJECT_BINARY_DIR}/narrowfloat-config-version.cmake
        DESTINATION ${NF_PACKAGE_DIR} COMPONENT development)
