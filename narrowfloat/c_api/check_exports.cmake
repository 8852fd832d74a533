# SPDX-License-Identifier: Apache-2.0
# Fails unless LIBRARY defines exactly the dynamic symbols in the list EXPECTED.
execute_process(COMMAND ${NM} -D --defined-only --format=posix ${LIBRARY}
                OUTPUT_VARIABLE listing COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" lines "${listing}")
set(found "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE " .*" "" symbol "${line}")
  list(APPEND found ${symbol})
endforeach()
list(SORT found)
file(STRINGS ${EXPECTED} expected)
if(NOT found STREQUAL expected)
  message(FATAL_ERROR "exported symbols differ\n  listed: ${expected}\n  found:  ${found}")
endif()
