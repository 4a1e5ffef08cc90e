# One folder is one target: moesaic_library(ir DEPS base quant) compiles src/ir/**/*.cc into moesaic_ir and
# links only what that folder may include (docs/architecture.md; tools/check_includes checks the rest).
function(moesaic_library name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$|/cuda/|/without_cuda\\.cc$")
  list(TRANSFORM ARG_DEPS PREPEND moesaic_)
  if(NOT sources)  # headers only
    add_library(moesaic_${name} INTERFACE)
    target_include_directories(moesaic_${name} INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(moesaic_${name} INTERFACE ${ARG_DEPS} ${ARG_LIBS})
    return()
  endif()
  add_library(moesaic_${name} STATIC ${sources})
  target_include_directories(moesaic_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(moesaic_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_LIBS})
endfunction()
