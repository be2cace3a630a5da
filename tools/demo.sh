#!/bin/sh
# The demonstration: one prompt, dense and sparse, compared. Called by `make demo`.
#   tools/demo.sh [PROGRAM [FOLDER]]      from the repository's root; default: build/winnow out/demo
# Writes FOLDER/video.mp4 (mean_pool), dense.mp4, skip_softmax.mp4, floor.mp4 (dense by another instruction set, where this machine
# has one), side_by_side.png and report.json.
set -eu
program=${1:-build/winnow}
folder=${2:-out/demo}
mkdir -p "$folder"
rm -f "$folder"/*.mp4 "$folder/side_by_side.png" "$folder/report.json"
"$program" generate --model models/winnow-tiny --prompt "a large red ball moving right over a checkered navy background" --seed 77 \
  --attention mean_pool --compare dense --compare skip_softmax --compare floor --repeat 2 \
  --output "$folder/video.mp4" --report "$folder/report.json"
echo
echo "Look at $folder/side_by_side.png and play $folder/video.mp4; the numbers are in $folder/report.json."
