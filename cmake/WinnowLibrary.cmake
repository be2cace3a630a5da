# The library: every src/<folder>/*.cc that is not a test. A file's name says how it is compiled:
#   *_avx2.cc *_avx512.cc *_avx512bf16.cc *_amx.cc   with that instruction set, on x86 only
#   *_absent.cc                      stands in for what is not built: x86_absent.cc, cuda_absent.cc
find_package(Threads REQUIRED)
find_package(dnnl CONFIG REQUIRED)
find_package(PNG REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)

if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(WINNOW_X86 OFF)
endif()

file(GLOB winnow_sources CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/src/*/*.cc ${PROJECT_SOURCE_DIR}/src/*/cpu/*.cc ${PROJECT_SOURCE_DIR}/src/*/cuda/*.cc)
list(FILTER winnow_sources EXCLUDE REGEX "_(test|bench)\\.cc$")
if(WINNOW_X86)
  list(FILTER winnow_sources EXCLUDE REGEX "x86_absent\\.cc$")
else()
  list(FILTER winnow_sources EXCLUDE REGEX "_(avx2|avx512|avx512bf16|amx)\\.cc$")
endif()
if(WINNOW_CUDA)
  list(FILTER winnow_sources EXCLUDE REGEX "cuda_absent\\.cc$")
endif()

# -ffp-contract=off: a result does not depend on which multiply-adds a compiler chose to fuse.
set(winnow_isa_avx2 -mavx2 -mfma -mf16c -ffp-contract=off)
set(winnow_isa_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprefer-vector-width=512 -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # its own intrinsics' undefined operands look uninitialised to it (GCC bug 105593)
  list(APPEND winnow_isa_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
set(winnow_isa_avx512bf16 ${winnow_isa_avx512} -mavx512bf16)
set(winnow_isa_amx ${winnow_isa_avx512bf16} -mamx-tile -mamx-bf16 -mamx-int8)
foreach(source IN LISTS winnow_sources)
  if(source MATCHES "_(avx2|avx512|avx512bf16|amx)\\.cc$")
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${winnow_isa_${CMAKE_MATCH_1}}")
  endif()
endforeach()

add_library(winnow ${winnow_sources})
add_library(winnow::winnow ALIAS winnow)
target_compile_definitions(winnow PRIVATE WINNOW_VERSION="${PROJECT_VERSION}")
target_compile_features(winnow PUBLIC cxx_std_20)
target_include_directories(winnow
  PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
  PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(winnow PRIVATE Threads::Threads DNNL::dnnl PNG::PNG $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
set(winnow_warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND winnow_warnings -Wno-restrict)  # false alarms in std::string's operator+ (GCC bug 105651)
endif()
target_compile_options(winnow PRIVATE -ffp-contract=off ${winnow_warnings} $<$<BOOL:${WINNOW_WERROR}>:-Werror>)
set_target_properties(winnow PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
