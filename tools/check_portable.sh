#!/bin/bash
# Compiles every source of the portable configuration (WINNOW_X86=OFF) for aarch64, to prove that no x86 intrinsic is needed.
# Compiles only: the third-party headers are the build machine's own.
set -euo pipefail
cd "$(dirname "$0")/.."
compiler=${CXX_AARCH64:-aarch64-linux-gnu-g++}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# Only the third-party headers, so that the cross compiler keeps its own C library.
mkdir "$out/include"
for header in oneapi nlohmann libpng16 png.h pngconf.h; do
  if [ -e "/usr/include/$header" ]; then ln -s "/usr/include/$header" "$out/include/$header"; fi
done
for header in /usr/include/dnnl*.h*; do ln -s "$header" "$out/include/"; done
sources=$(find src -name '*.cc' ! -name '*_test.cc' ! -name '*_avx2.cc' ! -name '*_avx512.cc' ! -name '*_avx512bf16.cc' ! -name '*_amx.cc')
export compiler out
echo "$sources" | xargs -P "$(nproc)" -I{} bash -c \
  '"$compiler" -std=c++20 -O1 -c -Wall -Wextra -Werror -DWINNOW_VERSION=\"0\" -Iinclude -Isrc -isystem "$out/include" {} -o "$out/$(echo {} | tr / _).o" || exit 255'
echo "portable: $(echo "$sources" | wc -l) sources compile with $compiler"
