# The CUDA executors. Included with WINNOW_CUDA=ON only: a CPU build neither needs nor looks for CUDA.
# Machine code only, no PTX: on another GPU the executors report what they need instead of compiling at start.
set(WINNOW_CUDA_ARCHS "80;89;90a;100a;120a" CACHE STRING "GPUs that the portable kernel is compiled for, as CMAKE_CUDA_ARCHITECTURES")
enable_language(CUDA)
find_package(CUDAToolkit 12.8 REQUIRED)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc takes C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
if(WINNOW_WERROR)  # a kernel that spills, or whose wgmmas ptxas serialises, does not build
  list(PREPEND CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/tools/ptxas_gate.sh)
endif()

file(GLOB winnow_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/exec/cuda/*.cu ${PROJECT_SOURCE_DIR}/src/exec/cuda/inst/*.cu)
set(winnow_sm90_sources ${winnow_cuda_sources})
list(FILTER winnow_sm90_sources INCLUDE REGEX "/inst/sm90_[^/]*$")
list(REMOVE_ITEM winnow_cuda_sources ${winnow_sm90_sources})
# Libraries of their own, so that nvcc does not see the host compiler's warning flags.
function(winnow_add_kernels name archs)
  list(TRANSFORM archs APPEND "-real")
  add_library(${name} OBJECT ${ARGN})
  set_target_properties(${name} PROPERTIES
    CUDA_ARCHITECTURES "${archs}" CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON POSITION_INDEPENDENT_CODE ON CUDA_VISIBILITY_PRESET hidden)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_sources(winnow PRIVATE $<TARGET_OBJECTS:${name}>)
endfunction()
winnow_add_kernels(winnow_sm90 90a ${winnow_sm90_sources})
winnow_add_kernels(winnow_cuda "${WINNOW_CUDA_ARCHS}" ${winnow_cuda_sources})
list(JOIN WINNOW_CUDA_ARCHS "," winnow_cuda_targets)
target_compile_definitions(winnow_cuda PRIVATE WINNOW_CUDA_TARGETS="${winnow_cuda_targets}")
set_target_properties(winnow PROPERTIES CUDA_ARCHITECTURES 90a-real)  # it links with nvcc then
target_link_libraries(winnow PRIVATE CUDA::cudart_static)
