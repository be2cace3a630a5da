#!/bin/bash
# Installs the built library into a temporary prefix and builds and runs examples/attend against it with find_package(winnow).
set -euo pipefail
source_dir=$1
build_dir=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build_dir" --prefix "$work/prefix" >/dev/null
cmake -S "$source_dir/examples/attend" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$work/build" >/dev/null
"$work/build/attend_example" | tee "$work/out"
grep -q "density 0\.[0-9]*, relative L2 error 0\.[0-9]*" "$work/out"
