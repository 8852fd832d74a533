# Included by the presets: compiles through ccache if it is installed.
find_program(NF_CCACHE ccache)
if(NF_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${NF_CCACHE})
endif()
