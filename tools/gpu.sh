#!/bin/sh
# Builds, checks and times the CUDA executors. Needs nvcc; test and bench need an H100 or H200 and python3 with torch.
#   tools/gpu.sh build [FOLDER]      shared library for the scripts; fails on spills, stack frames and serialised wgmmas
#   tools/gpu.sh test  [FOLDER]      checks against an f64 reference
#   tools/gpu.sh sanitize [FOLDER]   the small cases under compute-sanitizer
#   tools/gpu.sh bench [FOLDER] [--json=FILE ...]   timings beside cuDNN, FlashAttention-2, FlexAttention and cuBLAS
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
command=${1:-build}
folder=${2:-$root/build-gpu}
[ $# -ge 2 ] && shift 2 || shift $#
library=$folder/libwinnow_attend_gpu.so

build() {
  mkdir -p "$folder"
  flags="-std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I$root/src -I$root/include -Xcompiler -fPIC"
  # Instantiations compile side by side; WINNOW_JOBS bounds them.
  printf '%s\n' "$root"/src/exec/cuda/*.cu "$root"/src/exec/cuda/inst/*.cu "$root"/bench/attend_gpu_c.cu |
    xargs -P "${WINNOW_JOBS:-$(nproc)}" -I{} sh -c \
      'o=$1/$(basename "$2" .cu); nvcc $3 -Xptxas -v -c "$2" -o "$o.o" >"$o.log" 2>&1 || { cat "$o.log"; exit 255; }' sh "$folder" {} "$flags"
  if grep -hE 'C75(10|11|12|14|15)|[1-9][0-9]* bytes (stack frame|spill)' "$folder"/*.log; then
    echo "gpu.sh: spills, stack frames or serialised wgmmas in the kernels above" >&2
    exit 1
  fi
  nvcc -shared -cudart static -gencode=arch=compute_90a,code=sm_90a "$folder"/*.o -o "$library"
}

case $command in
  build) build ;;
  test)
    build
    python3 "$root/tests/attend_gpu.py" "$library" "$@" ;;
  sanitize)
    build
    # racecheck cannot follow copies between the CTAs of a cluster.
    for tool in memcheck synccheck initcheck racecheck; do
      flags=
      [ $tool = racecheck ] && flags="--no-pairs --dims=128"
      # shellcheck disable=SC2086
      compute-sanitizer --tool "$tool" --error-exitcode 1 \
        python3 "$root/tests/attend_gpu.py" "$library" --mini $flags >"$folder/$tool.txt" 2>&1 ||
        { tail -n 40 "$folder/$tool.txt"; exit 1; }
      echo "$tool: clean"
    done ;;
  bench)
    build
    commit=${WINNOW_COMMIT:-$(git -C "$root" rev-parse --short HEAD 2>/dev/null || true)}
    python3 "$root/bench/attend_gpu.py" "$library" "--commit=$commit" "$@" ;;
  *)
    sed -n '2,7p' "$0" >&2
    exit 2 ;;
esac
