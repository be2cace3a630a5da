#!/bin/sh
# Compiler launcher for nvcc: shows what the compiler says, and fails when ptxas had to spill registers, give a kernel a stack
# frame, serialise wgmmas (C7510 to C7518) or ignore setmaxnreg (C7508): all of them build and run, slowly.
#   tools/ptxas_gate.sh [ccache] nvcc ...
set -u
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
"$@" -Xptxas -v 2>"$log"
status=$?
grep -vE '^ptxas info|bytes stack frame|^$' "$log" >&2
[ $status -eq 0 ] || exit $status
awk '
  /Function properties for|Compiling entry function/ { kernel = $NF; if (/Compiling/) kernel = $6 }
  /C75(08|10|11|12|14|15)|wgmma.mma_async instructions are serialized/ { print "ptxas_gate: " $0; bad = 1 }
  /[1-9][0-9]* bytes (stack frame|spill)/ { print "ptxas_gate: " kernel ":" $0; bad = 1 }
  END { exit bad }' "$log" >&2
