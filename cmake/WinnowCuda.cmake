# The CUDA executors. Included with WINNOW_CUDA=ON only: a CPU build neither needs nor looks for CUDA.
# Machine code only, no PTX: on another GPU the executor reports what it needs instead of compiling at start.
enable_language(CUDA)
find_package(CUDAToolkit 12.4 REQUIRED)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc takes C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
if(WINNOW_WERROR)  # a kernel that spills, or whose wgmmas ptxas serialises, does not build
  list(PREPEND CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/tools/ptxas_gate.sh)
endif()

file(GLOB winnow_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/exec/cuda/*.cu ${PROJECT_SOURCE_DIR}/src/exec/cuda/inst/*.cu)
# A library of its own, so that nvcc does not see the host compiler's warning flags.
add_library(winnow_cuda OBJECT ${winnow_cuda_sources})
set_target_properties(winnow_cuda PROPERTIES
  CUDA_ARCHITECTURES 90a-real CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON POSITION_INDEPENDENT_CODE ON CUDA_VISIBILITY_PRESET hidden)
target_include_directories(winnow_cuda PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
set_target_properties(winnow PROPERTIES CUDA_ARCHITECTURES 90a-real)  # it links with nvcc then
target_sources(winnow PRIVATE $<TARGET_OBJECTS:winnow_cuda>)
target_link_libraries(winnow PRIVATE CUDA::cudart_static)
