# SPDX-License-Identifier: Apache-2.0
set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${WORK_DIR})

execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix}
                        --component development
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE headers ${prefix}/*.h)
foreach(header ${headers})
  file(STRINGS ${header} found REGEX "nlohmann/")
  if(found)
    message(FATAL_ERROR "${header} is installed and needs a library that its users need not have")
  endif()
endforeach()
if(NOT BUILDS_PYTHON)  # then the wheel's component must have no files
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/python
                          --component python
                  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB_RECURSE strays ${WORK_DIR}/python/*)
  if(strays)
    message(FATAL_ERROR "an install without Python has ${strays}")
  endif()
endif()
set(paths ${prefix} ${PREFIX_PATH})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER_DIR} -B ${WORK_DIR}/build -G ${GENERATOR}
                        "-DCMAKE_PREFIX_PATH=${paths}" -DNF_WANTED_VERSION=${VERSION}
                        -DCMAKE_CXX_COMPILER=${CXX_COMPILER} "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}"
                        -DCMAKE_C_COMPILER=${C_COMPILER} "-DCMAKE_C_FLAGS=${C_FLAGS}"
                        -DCMAKE_BUILD_TYPE=Release
                        # Only the library's own sources may need it, not its users.
                        -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK_DIR}/build COMMAND_ERROR_IS_FATAL ANY)
foreach(program consumer c_consumer)
  execute_process(COMMAND ${WORK_DIR}/build/${program} OUTPUT_VARIABLE said
                  COMMAND_ERROR_IS_FATAL ANY)
  if(NOT said STREQUAL "codes 78, scale_inv 119, narrowfloat ${VERSION}\n")
    message(FATAL_ERROR "${program} said: ${said}")
  endif()
endforeach()
