#!/usr/bin/env python3
"""README's GPU table from bench/results/attend-h200.json. --check: fails if README has another one; without: writes it."""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results/attend-h200.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- gpu-table: tools/performance_table.py writes it -->\n", "<!-- /gpu-table -->\n"

DENSE = (("dense", "dense"), ("dense-75600", "dense"), ("dense-d64", "dense"))


def rate(r):
    return f"{r['tflops']:.0f}"


def table(records):
    def find(case, method="winnow", **more):
        found = [r for r in records if r["case"] == case and r["method"] == method and all(r.get(k) == v for k, v in more.items())]
        if not found:
            raise SystemExit(f"{RESULTS.name}: no record of {case} by {method} {more}")
        return found[0]

    lines = ["| TFLOP/s | Winnow | FlashAttention-3 | cuDNN | FlashAttention-2 |", "|---|---|---|---|---|"]
    for case, name in DENSE:
        ours, s = find(case), find(case)["shape"]
        cells = [f"{rate(r)} ({r['ms'] / ours['ms']:.2f}x)" for r in (find(case, m) for m in ("fa3", "cudnn", "fa2"))]
        lines.append(f"| {name}, S {s['S']}, H {s['H']}, D {s['D']} | **{rate(ours)}** | " + " | ".join(cells) + " |")
    lines += ["", "| over kept 64-key tiles, S 32768, H 24, D 128 | Winnow | of its dense rate | FlexAttention |", "|---|---|---|---|"]
    for ours in sorted((r for r in records if r["case"] == "sparse" and r["method"] == "winnow"), key=lambda r: -r["density"]):
        flex = find("sparse", "flex", density=ours["density"])
        lines.append(f"| density {ours['density']:.2f} | **{rate(ours)}** | {ours['ratio']:.2f} | {rate(flex)} |")
    lines += ["", "| skip-softmax, of our dense kernel's rate on the same data (of FlashAttention-3's) | nothing skipped | half | three quarters |",
              "|---|---|---|---|"]
    for data, name in (("normal", "normal numbers, dropped keys 1/50 as large"), ("signs", "signs of keys decide")):
        cells = []
        for ours in sorted((r for r in records if r.get("data") == data and r["method"] == "winnow"), key=lambda r: r["skipped"]):
            fa3 = find(ours["case"], "fa3", data=data)
            cells.append(f"**{ours['ratio']:.2f}** ({fa3['ms'] / ours['ms']:.2f})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    means = [r["ratio"] for r in records if r["case"] == "means"]
    first = records[0]
    lines += ["", f"Means of dropped tiles cost {min(means):.2f}-{max(means):.2f} times listed tiles. cuBLAS 8192³ in the same run: "
              f"{rate(find('gemm-8192', 'cublas'))}. {first['device']}, commit {first['commit']}."]
    return "\n".join(lines) + "\n"


def main():
    text = README.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"README.md: expected the lines {BEGIN.strip()} and {END.strip()}")
    head, rest = text.split(BEGIN)
    new = head + BEGIN + table(json.loads(RESULTS.read_text())) + END + rest.split(END)[1]
    if "--check" in sys.argv and new != text:
        raise SystemExit("README.md: its GPU table is not that of bench/results/attend-h200.json: run tools/performance_table.py")
    if "--check" not in sys.argv:
        README.write_text(new)


if __name__ == "__main__":
    main()
