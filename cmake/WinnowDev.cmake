# The command line, tests, benchmarks and fuzz targets. Not built when Winnow is part of another project.
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig QUIET)

# Internal headers and libraries for targets that look inside.
add_library(winnow_internal INTERFACE)
target_include_directories(winnow_internal INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
target_link_libraries(winnow_internal INTERFACE winnow::winnow nlohmann_json::nlohmann_json PNG::PNG DNNL::dnnl Threads::Threads)
target_compile_options(winnow_internal INTERFACE ${winnow_warnings} $<$<BOOL:${WINNOW_WERROR}>:-Werror>)

file(GLOB cli_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/*.cc)
list(FILTER cli_sources EXCLUDE REGEX "_test\\.cc$")
if(cli_sources)
  add_executable(winnow_cli ${cli_sources})
  set_target_properties(winnow_cli PROPERTIES OUTPUT_NAME winnow RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_link_libraries(winnow_cli PRIVATE winnow_internal CLI11::CLI11)
endif()

enable_testing()
include(GoogleTest)
# One test program per folder; ctest runs and counts each test case on its own.
function(winnow_add_tests name)
  if(ARGN)
    add_executable(${name} ${ARGN})
    target_link_libraries(${name} PRIVATE winnow_internal GTest::gmock GTest::gtest_main)
    target_compile_definitions(${name} PRIVATE
      WINNOW_SOURCE_DIR="${PROJECT_SOURCE_DIR}" WINNOW_BINARY_DIR="${PROJECT_BINARY_DIR}" WINNOW_VERSION="${PROJECT_VERSION}")
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
      PROPERTIES TIMEOUT 900 ENVIRONMENT WINNOW_PROFILE=none)
  endif()
endfunction()
file(GLOB folders RELATIVE ${PROJECT_SOURCE_DIR}/src CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*)
foreach(folder IN LISTS folders)
  file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*_test.cc ${PROJECT_SOURCE_DIR}/src/${folder}/cpu/*_test.cc)
  winnow_add_tests(${folder}_tests ${tests})
endforeach()
if(WINNOW_CUDA)  # they skip themselves where there is no GPU
  file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*/cuda/*_test.cc)
  winnow_add_tests(cuda_tests ${tests})
  # Runs on a GPU machine that has none of the libraries that only other parts of Winnow use.
  target_link_options(cuda_tests PRIVATE -Wl,--as-needed)
  target_link_libraries(cuda_tests PRIVATE CUDA::cudart_static)
endif()
file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*_test.cc ${PROJECT_SOURCE_DIR}/cli/*_test.cc)
winnow_add_tests(system_tests ${tests})
if(TARGET system_tests AND TARGET winnow_cli)
  add_dependencies(system_tests winnow_cli)
endif()

# A sanitized library cannot be linked from an example that is not.
if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  add_test(NAME Install.ExampleBuildsAgainstTheInstalledPackage
    COMMAND ${PROJECT_SOURCE_DIR}/tests/install_test.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
endif()

file(GLOB benches CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*_bench.cc)
foreach(bench IN LISTS benches)
  get_filename_component(name ${bench} NAME_WE)
  add_executable(${name} ${bench})
  target_link_libraries(${name} PRIVATE winnow_internal benchmark::benchmark)
endforeach()

file(GLOB fuzzers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fuzz/*_fuzz.cc)
foreach(fuzzer IN LISTS fuzzers)
  get_filename_component(name ${fuzzer} NAME_WE)
  if(WINNOW_FUZZ)
    add_executable(${name} ${fuzzer})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(${name} PRIVATE winnow_internal)
  endif()
endforeach()
