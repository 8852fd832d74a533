# Read by the presets: compile through ccache where there is one.
find_program(NF_CCACHE ccache)
if(NF_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${NF_CCACHE})
endif()
