"""Times the CUDA attention kernel beside its peers in one process. Run on the GPU machine:

    python3 bench/attend_gpu.py LIBRARY [LIBRARY ...] [--cases=dense,sparse,...] [--rounds=5] [--json=FILE] [--commit=HASH]

Random data; methods take turns in blocks of calls, see measure(); the median call is printed. TFLOP/s count 4 * D per computed query-key pair. Several libraries compare variants of the kernel.
"""
import json
import math
import os
import random
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from winnow_gpu import Library, Plan, TILE_K, TILE_Q, ceil_div, key_means  # noqa: E402

records = []
options = {a.split("=")[0]: a.partition("=")[2] for a in sys.argv[1:] if a.startswith("--")}
rounds = int(options.get("--rounds", 5))
BLOCK_MS = 600 if "--energy" in options else 150
joules = {}  # of the last measure(): J per call, each round; the counter is too coarse for short blocks


def energy():
    if "--energy" not in options:
        return 0.0
    import pynvml
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0)) / 1e3



def measure(methods):
    """{name: function} -> {name: median ms}.

    The card is limited by its power: a kernel runs faster right after an idle or a light one. So each method runs alone for
    BLOCK_MS, the first third of which is not counted; blocks come in a new random order in every round.
    """
    def timed(f, n):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
        events[0].record()
        for e in events[1:]:
            f()
            e.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in zip(events, events[1:])]

    counts = {}
    for name, f in methods.items():
        timed(f, 2)
        counts[name] = min(300, max(6, round(BLOCK_MS / statistics.median(timed(f, 3)))))
    times = {name: [] for name in methods}
    names = list(methods)
    joules.clear()
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            before = energy()
            times[name] += timed(methods[name], counts[name])[counts[name] // 3:]
            joules.setdefault(name, []).append((energy() - before) / counts[name])
    return {name: statistics.median(t) for name, t in times.items()}


def record(case, shape, method, density, ms, flop, versus, ratio, **more):
    tflops = flop / ms / 1e9
    if "--energy" in options and method in joules:
        more["joule"] = round(statistics.median(joules[method]), 3)
    records.append(dict(commit=options.get("--commit", ""), device=torch.cuda.get_device_name(), case=case, shape=shape, method=method,
                        density=round(density, 4), ms=round(ms, 4), tflops=round(tflops, 1), versus=versus, ratio=round(ratio, 4), **more))
    extra = " ".join(f"{k} {v}" for k, v in more.items())
    print(f"{case:16s} {method:14s} density {density:5.3f}  {ms:8.3f} ms  {tflops:6.1f} TFLOP/s  {ratio:6.3f} x {versus} {extra}", flush=True)


def inputs(B, S, H, D, dtype=torch.bfloat16, Hk=None):
    return [torch.randn(B, S, h, D, device="cuda", dtype=dtype) for h in (H, Hk or H, Hk or H)]


def sdpa(backend, q, k, v):
    t = [x.transpose(1, 2) for x in (q, k, v)]

    def f():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*t)
    return f


def random_keep(B, H, Gq, Gk, density):
    """The same number of key tiles in every row, at random places."""
    n = max(1, round(density * Gk))
    order = torch.rand(B, H, Gq, Gk, device="cuda").argsort(-1)
    return order < n


def case_gemm(libs):
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ms = measure({"cublas": lambda: a @ b})["cublas"]
    record("gemm-8192", dict(M=8192, N=8192, K=8192), "cublas", 1, ms, 2 * 8192 ** 3, "cublas", 1)


def case_dense(libs, name="dense", B=1, S=32768, H=24, D=128, dtype=torch.bfloat16, peers=True):
    q, k, v = inputs(B, S, H, D, dtype)
    flop = 4 * B * H * S * S * D
    shape = dict(B=B, S=S, H=H, D=D)
    methods = {}
    for m, lib in libs.items():
        out = torch.empty_like(q)
        call = lib.call(q, k, v, out, Plan(lib, None, B, H, S, S, D))
        methods[m] = lambda lib=lib, call=call, out=out: lib.run(call)
        if name == "dense":
            inv_l = torch.empty(B, H, S, device="cuda")
            methods[m + " with 1/l"] = lambda lib=lib, c=lib.call(q, k, v, out, Plan(lib, None, B, H, S, S, D), inv_l=inv_l), x=inv_l: lib.run(c)
    if peers:
        methods["cudnn"] = sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v)
        methods["fa2"] = sdpa(SDPBackend.FLASH_ATTENTION, q, k, v)
    times = measure(methods)
    versus = "cudnn" if peers else next(iter(libs))
    for m, ms in times.items():
        record(name, shape, m, 1, ms, flop, versus, times[versus] / ms)


def case_burst(libs, B=1, S=32768, H=24, D=128):
    """Single calls on a rested card, 0.1 s apart: the clock stays high. What most published numbers measure."""
    q, k, v = inputs(B, S, H, D)
    methods = {m: (lambda lib=lib, c=lib.call(q, k, v, out, plan), x=(plan, out): lib.run(c))
               for m, lib in libs.items() for out, plan in [(torch.empty_like(q), Plan(lib, None, B, H, S, S, D))]}
    methods["cudnn"] = sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    methods["cublas"] = lambda: a @ b
    times = {m: [] for m in methods}
    for f in methods.values():
        f()
    for _ in range(20):
        for m, f in methods.items():
            torch.cuda.synchronize()
            time.sleep(0.1)
            f() if m == "cublas" else None  # wakes the clock up; 2 % of the other calls
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            events[0].record()
            f()
            events[1].record()
            torch.cuda.synchronize()
            times[m].append(events[0].elapsed_time(events[1]))
    times = {m: statistics.median(t) for m, t in times.items()}
    for m, ms in times.items():
        flop = 2 * 8192 ** 3 if m == "cublas" else 4 * B * H * S * S * D
        ratio = 1 if m == "cublas" else times["cudnn"] / ms
        record("dense-burst", dict(B=B, S=S, H=H, D=D), m, 1, ms, flop, "cudnn", ratio)


def case_sparse(libs, densities=(0.5, 0.25, 0.10, 0.05), B=1, S=32768, H=24, D=128, flex=True, name="sparse"):
    q, k, v = inputs(B, S, H, D)
    shape = dict(B=B, S=S, H=H, D=D)
    Gq, Gk = S // TILE_Q, S // TILE_K
    flex_attention = None
    if flex and "--noflex" not in options:
        from torch.nn.attention.flex_attention import BlockMask, flex_attention as eager
        flex_attention = torch.compile(eager, dynamic=False)
    for density in densities:
        keep = random_keep(B, H, Gq, Gk, density)
        share = keep.float().mean().item()
        flop = 4 * B * H * S * S * D * share
        methods = {}
        for m, lib in libs.items():
            out = torch.empty_like(q)
            plan = Plan(lib, keep, B, H, S, S, D)
            call = lib.call(q, k, v, out, plan)
            methods[m] = lambda lib=lib, call=call, keep=(plan, out): lib.run(call)
            dense_plan = Plan(lib, None, B, H, S, S, D)
            dense_call = lib.call(q, k, v, out, dense_plan)
            methods[m + "-dense"] = lambda lib=lib, call=dense_call, keep=(dense_plan, out): lib.run(call)
        if flex_attention is not None:
            # FlexAttention's tiles are 128 x 128: as many keys per row.
            wide = random_keep(B, H, Gq, Gk // 2, density)
            count = wide.sum(-1).to(torch.int32)
            index = torch.argsort(wide.to(torch.int32), dim=-1, descending=True, stable=True).to(torch.int32)
            mask = BlockMask.from_kv_blocks(torch.zeros_like(count), torch.zeros_like(index), count, index, BLOCK_SIZE=(128, 128))
            t = [x.transpose(1, 2) for x in (q, k, v)]
            methods["flex"] = lambda mask=mask, t=t: flex_attention(*t, block_mask=mask)
        times = measure(methods)
        for m, ms in times.items():
            if m.endswith("-dense"):
                continue
            base = (m if m in libs else next(iter(libs))) + "-dense"
            ratio = (times[base] * share) / ms  # over kept tiles, against our dense rate
            record(name, shape, m, share, ms, flop, "winnow dense rate", ratio)


def case_ragged(libs):
    for S, H in ((32760, 24), (32768, 24)):
        case_dense(libs, f"ragged-{S}", 1, S, H, 128, peers=False)
    case_dense(libs, "long-75600", 1, 75600, 8, 128)


def case_short(libs):
    for S in (4096, 8192, 16384):
        case_dense(libs, f"dense-{S}", 1, S, 24, 128)


def case_d64(libs):
    case_dense(libs, "dense-d64", 1, 32768, 24, 64)


def case_f16(libs):
    case_dense(libs, "dense-f16", 1, 32768, 24, 128, torch.float16)


def case_means(libs, B=1, S=32768, H=24, D=128):
    q, k, v = inputs(B, S, H, D)
    shape = dict(B=B, S=S, H=H, D=D)
    k_mean, v_mean = key_means(k), key_means(v)
    for density in (0.25, 0.10):
        keep = random_keep(B, H, S // TILE_Q, S // TILE_K, density)
        methods = {}
        for m, lib in libs.items():
            out = torch.empty_like(q)
            drop, mean = Plan(lib, keep, B, H, S, S, D), Plan(lib, keep, B, H, S, S, D, means=True)
            methods[m + " drop"] = lambda lib=lib, c=lib.call(q, k, v, out, drop), x=(drop, out): lib.run(c)
            methods[m + " means"] = lambda lib=lib, c=lib.call(q, k, v, out, mean, None, k_mean, v_mean), x=(mean, out): lib.run(c)
        times = measure(methods)
        for m in libs:
            # Cost of the virtual keys in units of as many listed keys.
            listed, virtual = density * S, S / TILE_K
            cost = (times[m + " means"] / times[m + " drop"] - 1) * listed / virtual
            record("means", shape, m, density, times[m + " means"], 4 * B * H * S * D * (listed + virtual), "its tiles' cost", cost)


def case_skip(libs, B=1, S=32768, H=24, D=128):
    """Skip-softmax at a chosen share: a share of the 128-key steps has tiny keys, the rest scores far above."""
    q, k0, v = inputs(B, S, H, D)
    q = q.abs() * 0.5  # positive q: the sign of k decides the sign of a score
    shape = dict(B=B, S=S, H=H, D=D)
    flop = 4 * B * H * S * S * D
    for share in (0.0, 0.5, 0.75):
        low = torch.rand(S // 128, device="cuda").argsort() < round(share * S / 128)
        low[-1] = False
        low = low.repeat_interleave(128)[None, :, None, None]
        k = torch.where(low, k0 * 0.3 - 2.0, k0 * 0.3 + 0.5)
        methods = {}
        granules = {}
        for m, lib in libs.items():
            out = torch.empty_like(q)
            plan = Plan(lib, None, B, H, S, S, D)
            granules[m] = torch.zeros(2, dtype=torch.int64, device="cuda")
            methods[m] = lambda lib=lib, c=lib.call(q, k, v, out, plan, skip=-12.0, granules=granules[m]), x=out: lib.run(c)
            methods[m + " off"] = lambda lib=lib, c=lib.call(q, k, v, out, plan), x=(plan, out): lib.run(c)
        times = measure(methods)
        for m in libs:
            tested, skipped = granules[m].tolist()
            record(f"skip-{share}", shape, m, 1 - skipped / tested / 2, times[m], flop, "dense", times[m + " off"] / times[m],
                   skipped=round(skipped / tested, 3))


CASES = dict(gemm=case_gemm, dense=case_dense, burst=case_burst, sparse=case_sparse, ragged=case_ragged, short=case_short, d64=case_d64, f16=case_f16,
             means=case_means, skip=case_skip)


def main():
    paths = [a for a in sys.argv[1:] if not a.startswith("--")]
    names = ["winnow"] if len(paths) == 1 else [os.path.splitext(os.path.basename(p))[0] for p in paths]
    libs = {n: Library(p) for n, p in zip(names, paths)}
    torch.manual_seed(0)
    for case in options.get("--cases", "gemm,dense,burst,f16,d64,ragged,short,means,skip,sparse").split(","):
        try:
            CASES[case](libs)
        except Exception as e:  # one peer that does not run must not cost the other cases
            print(f"{case}: {type(e).__name__}: {str(e)[:300]}", flush=True)
    if "--json" in options:
        with open(options["--json"], "w") as f:
            f.write("[\n" + ",\n".join(json.dumps(r) for r in records) + "\n]\n")


if __name__ == "__main__":
    main()
