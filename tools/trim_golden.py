#!/usr/bin/env python3
"""Copies the part of the numeric fixtures that the tests need, small enough for the repository (< 20 MB).

    python tools/trim_golden.py GOLDEN [OUT]

GOLDEN is the folder with the whole set, OUT defaults to tests/golden. Tensors are copied bit for bit, except for
those that TRIM changes on purpose: velocities at every fourth latent frame.
tests/golden/README.md describes the result. Needs torch (CPU) and safetensors.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

LIMIT = 20_000_000  # bytes, all files together

FRAME_STEP = 4  # of the frame axis in [batch, channel, frame, height, width]


def every_nth_frame(tensor):
    return tensor[:, :, ::FRAME_STEP].contiguous()


# Per file: which tensors leave ("drop"), and which change: old name -> (new name, function).
VELOCITIES = {
    f"velocity_{label}": (f"velocity_{label}.frames_by_{FRAME_STEP}", every_nth_frame) for label in ("f32", "bf16")
}
TRIM = {
    "tiny_random": {},
    "small_forward_and_generation": {
        # before_step6 and before_step24 are high.latent and low.latent once more.
        "drop": ["gen.before_step6", "gen.before_step13", "gen.before_step24"]
        + [f"low.cond.f32.block{block}" for block in (0, 2, 5)],
    },
    "full_generation": {"drop": ["final"]},
    "full_forward_high": {"change": VELOCITIES},
    "full_forward_low": {"change": VELOCITIES},
}


def trim(source, target, drop=(), change={}):
    """Writes `target` with the tensors of `source` that are not dropped; returns its size in bytes."""
    tensors = {}
    with safe_open(source, framework="pt") as file:
        names = set(file.keys())
        missing = (set(drop) | set(change)) - names
        if missing:
            raise SystemExit(f"{source}: expected tensors {sorted(missing)}, which are not there")
        for name in sorted(names - set(drop)):
            new_name, function = change.get(name, (name, lambda tensor: tensor))
            tensors[new_name] = function(file.get_tensor(name))
        made = {key: value for key, value in (file.metadata() or {}).items() if key != "format"}
    # One metadata entry: safetensors writes several in random order, and the bytes should not change.
    save_file(tensors, target, metadata={"made_with": json.dumps(made, sort_keys=True)} if made else None)
    target.chmod(0o644)
    return target.stat().st_size


def check_duplicates(golden):
    """The two latents that are dropped as duplicates really are."""
    with safe_open(golden / "small_forward_and_generation.safetensors", framework="pt") as file:
        for kept, dropped in (("high.latent", "gen.before_step6"), ("low.latent", "gen.before_step24")):
            if not torch.equal(file.get_tensor(kept), file.get_tensor(dropped)):
                raise SystemExit(f"{kept} and {dropped} differ: do not drop the second")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("golden", type=Path, help="folder with the whole fixtures")
    parser.add_argument("out", nargs="?", type=Path, default=Path("tests/golden"))
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    check_duplicates(arguments.golden)
    arguments.out.mkdir(parents=True, exist_ok=True)
    total = 0
    for stem, rules in TRIM.items():
        name = f"{stem}.safetensors"
        size = trim(arguments.golden / name, arguments.out / name, **rules)
        print(f"{size:>10} {name}")
        total += size
    print(f"{total:>10} in all")
    if total >= LIMIT:
        raise SystemExit(f"expected less than {LIMIT} bytes, found {total}")


if __name__ == "__main__":
    main()
