#!/bin/sh
# Builds, checks and times the CUDA executors.
#   tools/gpu.sh build [FOLDER]      library and tests by CMake, in build-cuda; needs nvcc and Winnow's packages, but no GPU
#   tools/gpu.sh test [FOLDER]       the tests that are there; needs a GPU and nothing else
#   tools/gpu.sh sanitize [FOLDER]   the small ones under compute-sanitizer
#   tools/gpu.sh kernels [FOLDER]    the sm_90a kernels as a shared library for the bench scripts, in build-gpu; needs nvcc only
#   tools/gpu.sh bench [FOLDER] [--json=FILE ...]   timings beside cuDNN, FlashAttention-2, FlexAttention and cuBLAS; needs torch
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
command=${1:-}
[ $# -ge 1 ] && shift

build() {
  cmake -S "$root" --preset cuda -B "$folder"
  cmake --build "$folder" --target cuda_tests exec_tests winnow_cli
}

kernels() {
  mkdir -p "$folder"
  flags="-std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I$root/src -I$root/include -Xcompiler -fPIC"
  # Instantiations compile side by side; WINNOW_JOBS bounds them.
  printf '%s\n' "$root"/src/exec/cuda/attend_cuda.cu "$root"/src/exec/cuda/schedule.cu "$root"/src/exec/cuda/inst/sm90_*.cu \
    "$root"/bench/attend_gpu_c.cu |
    xargs -P "${WINNOW_JOBS:-$(nproc)}" -I{} sh -c \
      '"$1/tools/ptxas_gate.sh" nvcc $4 -c "$3" -o "$2/$(basename "$3" .cu).o" || exit 255' sh "$root" "$folder" {} "$flags"
  nvcc -shared -cudart static -gencode=arch=compute_90a,code=sm_90a "$folder"/*.o -o "$library"
}

case $command in
  build | test | sanitize) folder=${1:-$root/build-cuda} ;;
  *) folder=${1:-$root/build-gpu} ;;
esac
[ $# -ge 1 ] && shift
library=$folder/libwinnow_attend_gpu.so

case $command in
  build) build ;;
  test) "$folder/cuda_tests" "$@" ;;
  sanitize)
    # racecheck does not follow copies between the CTAs of a cluster; initcheck does not see the copy engine's stores, which write O
    # before a layout's kernel reads it.
    for tool in memcheck synccheck initcheck racecheck; do
      filter='*.Small*'
      [ $tool = racecheck ] && filter='*.Small*:-*Pairs*'
      [ $tool = initcheck ] && filter='*.Small*:-*Layouts*'
      compute-sanitizer --tool "$tool" --error-exitcode 1 "$folder/cuda_tests" --gtest_filter="$filter" >"$folder/$tool.txt" 2>&1 ||
        { tail -n 40 "$folder/$tool.txt"; exit 1; }
      if grep -q SKIPPED "$folder/$tool.txt"; then grep -m 1 'no GPU' "$folder/$tool.txt"; exit 1; fi
      echo "$tool: clean"
    done ;;
  kernels) kernels ;;
  bench)
    kernels
    commit=${WINNOW_COMMIT:-$(git -C "$root" rev-parse --short HEAD 2>/dev/null || true)}
    python3 "$root/bench/attend_gpu.py" "$library" "--commit=$commit" "$@" ;;
  *)
    sed -n '2,7p' "$0" >&2
    exit 2 ;;
esac
