# Pages become part of a library: moesaic_embed(moesaic_server HEADER server/pages.h FILES web/chat.html ...) adds a
# source that finds each file's bytes by its name without the ending. .incbin reads them when that source is compiled.
function(moesaic_embed target)
  cmake_parse_arguments(ARG "" "HEADER" "FILES" ${ARGN})
  set(text "#include \"${ARG_HEADER}\"\n\n")
  set(lookup "")
  foreach(file IN LISTS ARG_FILES)
    get_filename_component(name ${file} NAME_WE)
    string(MAKE_C_IDENTIFIER "moesaic_page_${name}" symbol)
    string(APPEND text "asm(\".section .rodata\\n.hidden ${symbol}\\n.global ${symbol}\\n${symbol}:\\n"
                       ".incbin \\\"${file}\\\"\\n.hidden ${symbol}_end\\n.global ${symbol}_end\\n${symbol}_end:\\n"
                       ".byte 0\\n.previous\\n\");\n"
                       "extern \"C\" const char ${symbol}[], ${symbol}_end[];\n\n")
    string(APPEND lookup "  if (name == \"${name}\") return {${symbol}, static_cast<size_t>(${symbol}_end - ${symbol})};\n")
  endforeach()
  string(APPEND text "std::string_view moesaic::embedded_page([[maybe_unused]] std::string_view name) {\n${lookup}  return {};\n}\n")
  set(source ${CMAKE_BINARY_DIR}/embedded/${target}_pages.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "${text}" @ONLY)
  # ccache knows .incbin's file only through this.
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS "${ARG_FILES}")
  target_sources(${target} PRIVATE ${source})
endfunction()
