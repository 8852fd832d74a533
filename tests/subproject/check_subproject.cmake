# SPDX-License-Identifier: Apache-2.0
file(REMOVE_RECURSE ${WORK_DIR})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${USER_DIR} -B ${WORK_DIR} -G ${GENERATOR}
                        -DNF_HOW=${NF_HOW} -DNF_SOURCE_DIR=${NF_SOURCE_DIR} -DNF_WERROR=ON
                        -DNF_BUILD_TOOLS=ON
                        -DCMAKE_CXX_COMPILER=${CXX_COMPILER} "-DCMAKE_PREFIX_PATH=${PREFIX_PATH}"
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

# Nothing is built, so that this fails if another project's installation includes a program or a library.
execute_process(COMMAND ${CMAKE_COMMAND} --install ${WORK_DIR} --prefix ${WORK_DIR}/prefix
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

file(READ ${WORK_DIR}/compile_commands.json commands)
string(JSON count LENGTH "${commands}")
math(EXPR last "${count} - 1")
set(found 0)
foreach(i RANGE ${last})
  string(JSON file GET "${commands}" ${i} file)
  if(NOT file MATCHES "^${USER_DIR}/")
    continue()
  endif()
  math(EXPR found "${found} + 1")
  string(JSON command GET "${commands}" ${i} command)
  string(JSON directory GET "${commands}" ${i} directory)
  if(command MATCHES " -W[a-z]")
    message(FATAL_ERROR "warnings of ours reach a user's source: ${command}")
  endif()
  if(file MATCHES "/user.cc$" AND NOT command MATCHES " -ffp-contract=off ")
    message(FATAL_ERROR "inline functions of ours would be contracted: ${command}")
  endif()
  separate_arguments(words UNIX_COMMAND "${command}")
  execute_process(COMMAND ${CMAKE_COMMAND} -E make_directory ${directory}/CMakeFiles/user.dir
                                           ${directory}/CMakeFiles/c_user.dir)
  # The library's headers must not cause warnings of -Wall and -Wextra.
  execute_process(COMMAND ${words} -Wall -Wextra -Werror WORKING_DIRECTORY ${directory} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
if(NOT found EQUAL 2)
  message(FATAL_ERROR "expected two sources of the user in compile_commands.json, got ${found}")
endif()
