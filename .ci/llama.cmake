# What llama.cpp compiles here, as one include of each of its projects: only the libraries that duo loads.
# Without its common library. libmtmd's models are compiled together, as llama.cpp does with libllama's, and
# two of its files with few optimisations: they build graphs and read files, and took a tenth of the whole time.
set(LLAMA_BUILD_COMMON OFF)

function(compile_mtmd_quickly)
  if(NOT TARGET mtmd)  # CMAKE_ARGS=-DLLAVA_BUILD=OFF
    return()
  endif()
  set(folder ${CMAKE_SOURCE_DIR}/vendor/llama.cpp/tools/mtmd)
  get_target_property(others mtmd SOURCES)
  list(FILTER others EXCLUDE REGEX "^models/")
  list(TRANSFORM others PREPEND ${folder}/)
  set_source_files_properties(${others} DIRECTORY ${folder} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 32)
  set_source_files_properties(
    ${folder}/clip.cpp ${folder}/mtmd-helper.cpp DIRECTORY ${folder} PROPERTIES COMPILE_OPTIONS -O1)
endfunction()

if(CMAKE_CURRENT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR)
  cmake_language(DEFER CALL compile_mtmd_quickly)
endif()
