"""Times the CUDA attention kernel beside its peers in one process. Run on the GPU machine:

    python3 bench/attend_gpu.py LIBRARY [LIBRARY ...] [--cases=dense,sparse,...] [--rounds=5] [--json=FILE] [--commit=HASH] [--fa3=FILE]

Random data; methods take turns in blocks of calls, see measure(); the median call is printed. TFLOP/s count 4 * D per computed
query-key pair. Several libraries compare variants of the kernel. --fa3: a shared library with FlashAttention-3's bf16 forward
behind the C function that Fa3 calls.
"""
import ctypes
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


class Fa3:
    """int fa3_forward(q, k, v, out, lse, B, Sq, Sk, H, Hk, D, strides, scale, stream): tensors [B,S,H,D] bf16, lse [B,H,Sq] f32,
    strides: int64 batch, token, head of q, k, v, out. Returns 0."""

    def __init__(self, path):
        self.forward = ctypes.CDLL(path).fa3_forward

    def method(self, q, k, v):
        (B, S, H, D), P = q.shape, ctypes.c_void_p
        out, lse = torch.empty_like(q), torch.empty(B, H, S, device="cuda")
        strides = (ctypes.c_int64 * 12)(*[t.stride(i) for t in (q, k, v, out) for i in range(3)])

        def f():
            stream = torch.cuda.current_stream().cuda_stream
            if self.forward(*[P(t.data_ptr()) for t in (q, k, v, out, lse)], B, S, k.shape[1], H, k.shape[2], D, strides,
                            ctypes.c_float(D ** -0.5), P(stream)) != 0:
                raise RuntimeError("fa3_forward failed")
            return out
        return f


fa3 = Fa3(options["--fa3"]) if "--fa3" in options else None


def random_keep(B, H, Gq, Gk, density):
    """The same number of key tiles in every row, at random places."""
    n = max(1, round(density * Gk))
    order = torch.rand(B, H, Gq, Gk, device="cuda").argsort(-1)
    return order < n


def case_gemm(libs):
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ms = measure({"cublas": lambda: a @ b})["cublas"]
    record("gemm-8192", dict(M=8192, N=8192, K=8192), "cublas", 1, ms, 2 * 8192 ** 3, "cublas", 1)


def winnow_methods(libs, q, k, v, suffix="", inv_l=None):
    B, S, H, D = q.shape
    methods = {}
    for m, lib in libs.items():
        plan, out = Plan(lib, None, B, H, S, S, D), torch.empty_like(q)
        methods[m + suffix] = lambda lib=lib, c=lib.call(q, k, v, out, plan, inv_l=inv_l), x=(plan, out): lib.run(c)
    return methods


def peer_methods(q, k, v):
    peers = {"cudnn": sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v), "fa2": sdpa(SDPBackend.FLASH_ATTENTION, q, k, v)}
    if fa3 is not None and q.dtype == torch.bfloat16:
        peers["fa3"] = fa3.method(q, k, v)
        ours = torch.empty_like(q)  # the entry point computes the same function
        lib = Library(next(a for a in sys.argv[1:] if not a.startswith("--")))
        lib.run(lib.call(q, k, v, ours, Plan(lib, None, q.shape[0], q.shape[2], q.shape[1], q.shape[1], q.shape[3])))
        difference = ((peers["fa3"]().float() - ours.float()).norm() / ours.float().norm()).item()
        if not difference < 1e-2:
            raise RuntimeError(f"fa3 differs from winnow by {difference}")
    return peers


def case_dense(libs, name="dense", B=1, S=32768, H=24, D=128, dtype=torch.bfloat16):
    q, k, v = inputs(B, S, H, D, dtype)
    methods = winnow_methods(libs, q, k, v)
    if name == "dense":
        methods |= winnow_methods(libs, q, k, v, " with 1/l", torch.empty(B, H, S, device="cuda"))
    times = measure(methods | peer_methods(q, k, v))
    for m, ms in times.items():
        case, method = (name + "-inv-l", m[:-9]) if m.endswith(" with 1/l") else (name, m)
        record(case, dict(B=B, S=S, H=H, D=D), method, 1, ms, 4 * B * H * S * S * D, "cudnn", times["cudnn"] / ms)


def case_burst(libs, B=1, S=32768, H=24, D=128):
    """Single calls on a rested card, 0.1 s apart: the clock stays high. What most published numbers measure."""
    q, k, v = inputs(B, S, H, D)
    methods = winnow_methods(libs, q, k, v)
    methods["cudnn"] = sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v)
    if fa3 is not None:
        methods["fa3"] = fa3.method(q, k, v)
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
            record(name, shape, m, share, ms, flop, "winnow, dense rate", ratio)


def case_ragged(libs, D=128):
    """Lengths that are no multiple of a tile, against the rate of one that is."""
    sizes = ((32768, 24), (32760, 24), (75600, 8))
    methods = {}
    for S, H in sizes:
        methods |= winnow_methods(libs, *inputs(1, S, H, D), suffix=f" {S}")
    times = measure(methods)
    for m in libs:
        rate = {S: H * S * S / times[f"{m} {S}"] for S, H in sizes}
        for S, H in sizes[1:]:
            record("ragged", dict(B=1, S=S, H=H, D=D), m, 1, times[f"{m} {S}"], 4 * H * S * S * D, "winnow, S 32768", rate[S] / rate[32768])


def case_long(libs):
    case_dense(libs, "dense-75600", 1, 75600, 8, 128)


def case_short(libs):
    for S in (4096, 8192, 16384):
        case_dense(libs, f"dense-{S}", 1, S, 24, 128)


def case_d64(libs):
    case_dense(libs, "dense-d64", 1, 32768, 24, 64)


def case_f16(libs):
    case_dense(libs, "dense-f16", 1, 32768, 24, 128, torch.float16)


def paired(methods, calls):
    """{name: function} -> {name: ms of every call}, the methods taking turns in a new random order each time. Medians of the
    differences within a turn measure a percent of a call to a few percent of itself; those of separate calls do not."""
    events = {name: [] for name in methods}
    names = list(methods)
    for _ in range(calls):
        random.shuffle(names)
        for name in names:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            methods[name]()
            end.record()
            events[name].append((begin, end))
    torch.cuda.synchronize()
    return {m: [a.elapsed_time(b) for a, b in pairs[calls // 4:]] for m, pairs in events.items()}


def case_means(libs, B=1, H=24, D=128):
    """What means cost, in units of as many listed keys: the same lists without them, with them, and with as many keys more."""
    for Sq, Sk, listed in ((32768, 32768, 128), (32768, 32768, 51), (32760, 32760, 128), (8192, 131072, 52)):
        q, k, v = (torch.randn(B, S, H, D, device="cuda", dtype=torch.bfloat16) for S in (Sq, Sk, Sk))
        k_mean, v_mean = key_means(k), key_means(v)
        Gq, Gk = ceil_div(Sq, TILE_Q), ceil_div(Sk, TILE_K)
        order = torch.rand(B, H, Gq, Gk, device="cuda").argsort(-1)
        more = ceil_div(Gk, TILE_K)
        for m, lib in libs.items():
            out = torch.empty_like(q)
            plans = {"drop": Plan(lib, order < listed, B, H, Sq, Sk, D), "means": Plan(lib, order < listed, B, H, Sq, Sk, D, means=True),
                     "more": Plan(lib, order < listed + more, B, H, Sq, Sk, D)}
            means = {"means": (k_mean, v_mean)}
            ms = paired({n: lambda c=lib.call(q, k, v, out, p, None, *means.get(n, (None, None))): lib.run(c) for n, p in plans.items()}, 160)
            flop = 4 * B * H * Sq * D * (listed * TILE_K + Gk)
            above = {n: statistics.median([x - y for x, y in zip(ms[n], ms["drop"])]) for n in ("means", "more")}
            record("means", dict(B=B, S=Sk, H=H, D=D), m, listed / Gk, statistics.median(ms["means"]), flop, "its tiles' cost",
                   above["means"] / above["more"], Sq=Sq)


def skip_data(kind, share, B, S, H, D):
    """q, k, v and a threshold (log2) at which the skip test drops a share of the 128-key steps, the same ones in all rows.

    "signs": positive q, whose scores the sign of k decides. "normal": normal numbers, those of a dropped step's keys 1/50 as large.
    """
    q, k, v = inputs(B, S, H, D)
    low = torch.rand(S // 128, device="cuda").argsort() < round(share * S / 128)
    low[-1] = False
    low = low.repeat_interleave(128)[None, :, None, None]
    if kind == "signs":
        return q.abs() * 0.5, torch.where(low, k * 0.3 - 2.0, k * 0.3 + 0.5), v, -12.0
    return q * 4, torch.where(low, k * 0.02, k), v, -7.0


def case_skip(libs, B=1, S=32768, H=24, D=128):
    """Skip-softmax, against the dense kernel and FlashAttention-3 on the same data."""
    shape = dict(B=B, S=S, H=H, D=D)
    flop = 4 * B * H * S * S * D
    for kind in ("normal", "signs"):
        for share in (0.0, 0.5, 0.75):
            q, k, v, threshold = skip_data(kind, share, B, S, H, D)
            methods, granules = {}, {}
            for m, lib in libs.items():
                out = torch.empty_like(q)
                plan = Plan(lib, None, B, H, S, S, D)
                granules[m] = torch.zeros(2, dtype=torch.int64, device="cuda")
                call = lib.call(q, k, v, out, plan, skip=threshold, granules=granules[m])
                methods[m] = lambda lib=lib, c=call, x=(plan, out): lib.run(c)
                methods[m + " off"] = lambda lib=lib, c=lib.call(q, k, v, out, plan), x=(plan, out): lib.run(c)
            if fa3 is not None:
                methods["fa3"] = fa3.method(q, k, v)
            times = measure(methods)
            for m in libs:
                tested, skipped = granules[m].tolist()
                record(f"skip-{share}", shape, m, 1 - skipped / tested / 2, times[m], flop, "winnow, dense", times[m + " off"] / times[m],
                       skipped=round(skipped / tested, 3), data=kind)
            if fa3 is not None:
                first = next(iter(libs))
                record(f"skip-{share}", shape, "fa3", 1, times["fa3"], flop, "winnow, dense", times[first + " off"] / times["fa3"], data=kind)


CASES = dict(gemm=case_gemm, dense=case_dense, burst=case_burst, sparse=case_sparse, ragged=case_ragged, long=case_long, short=case_short,
             d64=case_d64, f16=case_f16, means=case_means, skip=case_skip)


def main():
    paths = [a for a in sys.argv[1:] if not a.startswith("--")]
    names = ["winnow"] if len(paths) == 1 else [os.path.splitext(os.path.basename(p))[0] for p in paths]
    libs = {n: Library(p) for n, p in zip(names, paths)}
    torch.manual_seed(0)
    for case in options.get("--cases", "gemm,dense,burst,f16,d64,ragged,long,short,means,skip,sparse").split(","):
        try:
            CASES[case](libs)
        except Exception as e:  # one peer that does not run must not cost the other cases
            print(f"{case}: {type(e).__name__}: {str(e)[:300]}", flush=True)
    if "--json" in options:
        with open(options["--json"], "w") as f:
            f.write("[\n" + ",\n".join(json.dumps(r) for r in records) + "\n]\n")


if __name__ == "__main__":
    main()
