"""Checks of the CUDA attention kernel against an f64 reference over the same lists. Run on the GPU machine:

    python3 tests/attend_gpu.py LIBRARY [--quick]

FlashAttention's rule: the largest error may be at most twice that of the same attention computed by torch in the operand
type, plus a rounding of the result. Prints one line per case and exits non-zero if any fails.
"""
import math
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
from winnow_gpu import Library, Plan, TILE_K, TILE_Q, ceil_div, key_means, reference  # noqa: E402

failures = 0
count = 0


def report(ok, name, detail=""):
    global failures, count
    count += 1
    failures += not ok
    if not ok or "-v" in sys.argv:
        print(f"{'ok  ' if ok else 'FAIL'} {name}  {detail}", flush=True)


def rel(a, b):
    return ((a - b).norm() / b.norm().clamp(min=1e-30)).item()


def make(B, Sq, Sk, H, Hk, D, dtype, layout, gain=1.0, seed=0):
    g = torch.Generator("cuda").manual_seed(seed)

    def tensor(S, heads):
        x = torch.randn(B, S, heads, D, generator=g, device="cuda", dtype=torch.float32)
        if layout == "bshd":
            return x.to(dtype)
        if layout == "bhsd":  # [B,H,S,D] memory
            return x.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)
        wide = torch.full((B, S + 3, heads + 1, D + 8), math.nan, device="cuda", dtype=dtype)  # slices of a larger tensor
        wide[:, 1:S + 1, :heads, :D] = x.to(dtype)
        return wide[:, 1:S + 1, :heads, :D]

    q, k, v = tensor(Sq, H), tensor(Sk, Hk), tensor(Sk, Hk)
    if gain != 1.0:
        q.mul_(gain)
    return q, k, v


def same_dtype(q, k, v, keep, scale, **more):
    """What torch would give in the operand type: scores in f32, probabilities and result rounded."""
    B, Sq, H, D = q.shape
    out = torch.empty(B, Sq, H, D, dtype=torch.float64, device="cuda")
    full, _, _ = reference(q, k, v, keep, scale, **more)
    Sk, Hk = k.shape[1], k.shape[2]
    for b in range(B):
        for h in range(H):
            hk = h // (H // Hk)
            logits = q[b, :, h].float() @ k[b, :, hk].float().T * scale
            if keep is not None:
                valid = keep[b, h][torch.arange(Sq, device="cuda") // TILE_Q].repeat_interleave(TILE_K, 1)[:, :Sk]
                logits = logits.masked_fill(~valid, -math.inf)
            p = torch.softmax(logits, 1).to(q.dtype).nan_to_num(0)
            out[b, :, h] = (p @ v[b, :, hk]).double()
    return full, out


def check(lib, name, B, Sq, Sk, H, Hk, D, dtype=torch.bfloat16, layout="bshd", density=None, gain=1.0, means=False, lengths=None,
          empty=False, seed=0, skip=-math.inf, peak=None):
    torch.manual_seed(seed)
    q, k, v = make(B, Sq, Sk, H, Hk, D, dtype, layout, gain, seed)
    if peak is not None:  # scores grow tile by tile towards the middle of the keys
        ramp = peak * (1 - (torch.linspace(-1, 1, Sk, device="cuda")).abs())
        q, k = q.abs(), (k.abs() * ramp[None, :, None, None]).to(dtype)
    Gq, Gk = ceil_div(Sq, TILE_Q), ceil_div(Sk, TILE_K)
    keep = excluded = None
    if density is not None:
        keep = torch.rand(B, H, Gq, Gk, device="cuda") < density
        if empty:
            keep[:, 0] = False
            keep[:, :, Gq // 2] = False
    if lengths is not None and keep is not None:
        for b in range(B):
            keep[b, :, :, ceil_div(lengths[b], TILE_K):] = False
    if means:
        excluded = (torch.rand(B, H, Gq, Gk, device="cuda") < 0.1) & ~keep
    plan = Plan(lib, keep, B, H, Sq, Sk, D, lengths, means, excluded)
    mean_tiles = None
    k_mean = v_mean = None
    if means:
        mean_tiles = ~keep & ~excluded
        if lengths is not None:
            for b in range(B):
                mean_tiles[b, :, :, ceil_div(lengths[b], TILE_K):] = False
        k_mean, v_mean = key_means(k, plan.key_lengths), key_means(v, plan.key_lengths)
    # Poisoned and strided like the inputs; what surrounds the view must survive.
    if layout == "slice":
        room = torch.full((B, Sq + 2, H + 1, D + 8), 7.0, device="cuda", dtype=dtype)
        out = room[:, 1:Sq + 1, :H, :D]
    else:
        room, out = None, torch.empty_like(q)
    scale = D ** -0.5
    ref, ref_lse, ref_inv = reference(q, k, v, keep, scale, plan.key_lengths, k_mean, v_mean, mean_tiles)
    if lengths is None and not means:
        _, low = same_dtype(q, k, v, keep, scale)
        base = (low - ref).abs().max().item()
    else:
        base = 4e-3 * ref.abs().max().item()
    atol = 2 * (ref.to(dtype).double() - ref).abs().max().item()
    none = ref_lse == -math.inf
    some = ~none
    sharp = gain > 4 or peak is not None
    limit = 4e-3 if dtype == torch.bfloat16 else 6e-4
    # Asking for 1 / l chooses another kernel.
    for with_inv_l in (False, True):
        out.fill_(math.nan)
        lse = torch.full((B, H, Sq), math.nan, device="cuda")
        inv_l = torch.full((B, Sq, H), math.nan, device="cuda").transpose(1, 2) if with_inv_l else None
        lib.run(lib.call(q, k, v, out, plan, None, k_mean, v_mean, lse, inv_l, skip))
        torch.cuda.synchronize()
        got = out.double()
        bad = not bool(torch.isfinite(got).all())
        err = (got - ref).abs().max().item() if got.numel() else 0.0
        r = rel(got, ref)
        lse_ok = bool((lse.double()[none] == -math.inf).all())
        lse_err = (lse.double() - ref_lse)[some].abs().max().item() if some.any() else 0.0
        lse_tol = 1e-4 + 1e-6 * ref_lse[some].abs().max().item() if some.any() else 0
        inv_err, inv_ok = 0.0, True
        if with_inv_l and some.any():
            inv_err = ((inv_l.double() - ref_inv).abs() / ref_inv.clamp(min=1e-12))[some].max().item()
            inv_ok = bool((inv_l.double()[none] == 0).all())
        intact = room is None or bool((room[:, 0] == 7).all() and (room[:, -1] == 7).all() and (room[:, :, H] == 7).all()
                                      and (room[..., D:] == 7).all())
        ok = (not bad and err <= 2 * base + atol and (r < limit or sharp) and lse_ok and lse_err <= lse_tol and inv_ok
              and inv_err <= (3e-2 if sharp else 1e-3) and intact)
        report(ok, name + (" + 1/l" if with_inv_l else ""),
               f"max {err:.2e} (torch {base:.2e}) rel {r:.2e} lse {lse_err:.1e} (of {lse_tol:.1e}) inv_l {inv_err:.1e} finite {not bad} "
               f"empty {lse_ok and inv_ok} around {intact}")
    return out


def structure(lib, D):
    """Tests that pin indices rather than accuracy."""
    B, S, H = 1, 1088, 2
    q, k, _ = make(B, S, S, H, H, D, torch.bfloat16, "bshd")
    Gq, Gk = ceil_div(S, TILE_Q), S // TILE_K
    keep = torch.rand(B, H, Gq, Gk, device="cuda") < 0.5
    # V one-hot of the key tile: each output column is the mass of one tile.
    v = torch.zeros(B, S, H, D, device="cuda", dtype=torch.bfloat16)
    v[:, torch.arange(S), :, torch.arange(S) // TILE_K] = 1
    out = torch.full_like(q, math.nan)
    lib.run(lib.call(q, k, v, out, Plan(lib, keep, B, H, S, S, D)))
    ref, _, _ = reference(q, k, v, keep, D ** -0.5)
    report((out.double() - ref).abs().max().item() < 5e-3, f"D{D} one-hot V: mass per tile")
    unlisted = ~keep.repeat_interleave(TILE_Q, 2)[:, :, :S].transpose(1, 2)
    report(bool((out[..., :Gk][unlisted] == 0).all()), f"D{D} unlisted tiles have no mass")
    ones = torch.ones_like(v)
    lib.run(lib.call(q, k, ones, out, Plan(lib, keep, B, H, S, S, D)))
    some = keep.any(3).repeat_interleave(TILE_Q, 2)[:, :, :S].transpose(1, 2)
    report(bool((out[some] == 1).all()), f"D{D} constant V gives that constant")
    # NaN travels to its row, or through its key to every row that lists the tile, and nowhere else.
    bad_q = q.clone()
    bad_q[0, 5, 1, 3] = math.nan
    lib.run(lib.call(bad_q, k, ones, out, Plan(lib, None, B, H, S, S, D)))
    nan = out.isnan().any(3)
    report(bool(nan[0, 5, 1]) and int(nan.sum()) == 1, f"D{D} NaN in q stays in its row")
    bad_v = ones.clone()
    bad_v[0, 64, 0, 0] = math.inf
    lib.run(lib.call(q, k, bad_v, out, Plan(lib, keep, B, H, S, S, D)))
    hit = keep[0, 0, :, 1].repeat_interleave(TILE_Q)[:S]
    report(bool((out[0, :, 0, 0][hit] == math.inf).all()) and bool(torch.isfinite(out[0, :, 0, 0][~hit]).all()), f"D{D} inf in v reaches its listers")


def exactness(lib, D, dtype):
    """Bitwise: the full list and the dense plan, every repetition, every order of work, skip threshold far below every score."""
    for S, H in ((1000, 3), (4096 + 64, 3), (1100, 32)):
        B = 2
        q, k, v = make(B, S, S, H, H, D, dtype, "bshd", seed=3)
        Gq, Gk = ceil_div(S, TILE_Q), ceil_div(S, TILE_K)
        full = torch.ones(B, H, Gq, Gk, dtype=torch.bool, device="cuda")
        outs = []
        for plan, skip in ((Plan(lib, None, B, H, S, S, D), -math.inf), (Plan(lib, full, B, H, S, S, D), -math.inf),
                           (Plan(lib, None, B, H, S, S, D), -1e30)):
            out, lse = torch.full_like(q, math.nan), torch.full((B, H, S), math.nan, device="cuda")
            lib.run(lib.call(q, k, v, out, plan, lse=lse, skip=skip))
            outs.append((out, lse))
        report(torch.equal(outs[0][0], outs[1][0]) and torch.equal(outs[0][1], outs[1][1]), f"D{D} S{S} {dtype} full list == dense bitwise")
        report(torch.equal(outs[0][0], outs[2][0]), f"D{D} S{S} {dtype} skip at -inf-like threshold == no skip bitwise")
        keep = torch.rand(B, H, Gq, Gk, device="cuda") < 0.4
        first = None
        same = True
        for run in range(10):
            plan = Plan(lib, keep, B, H, S, S, D)
            plan.order = torch.randperm(B * H * Gq, device="cuda").to(torch.int32)
            out = torch.full_like(q, math.nan)
            lib.run(lib.call(q, k, v, out, plan))
            first = out if first is None else first
            same = same and torch.equal(first, out)
        report(same, f"D{D} S{S} {dtype} 10 shuffled runs bitwise equal")


def skip_reference(q, k, v, keep, scale, threshold):
    """Skip-softmax as specified, granules of 64 rows x 128 keys, in the kernel's order of steps. f64."""
    B, S, H, D = q.shape
    Gk = ceil_div(k.shape[1], TILE_K)
    out = torch.zeros(B, S, H, D, dtype=torch.float64, device="cuda")
    tested = skipped = 0
    for b in range(B):
        for h in range(H):
            x = q[b, :, h].double() @ k[b, :, h].double().T * (scale * math.log2(math.e))
            for g in range(ceil_div(S, 64)):
                rows = slice(64 * g, min(S, 64 * g + 64))
                tiles = list(range(Gk)) if keep is None else keep[b, h, g // 2].nonzero()[:, 0].tolist()
                tail = 2 - len(tiles) % 2 if tiles else 0
                steps = [tiles[len(tiles) - tail:]] + [tiles[i:i + 2] for i in range(0, len(tiles) - tail, 2)] if tiles else []
                top = None
                kept = []
                for step in steps:
                    columns = torch.cat([torch.arange(64 * t, min(k.shape[1], 64 * t + 64), device="cuda") for t in step])
                    m = x[rows][:, columns].amax(1)
                    tested += 1
                    if top is not None and bool((m - top < threshold).all()):
                        skipped += 1
                        continue
                    top = m if top is None else torch.maximum(top, m)
                    kept.append(columns)
                if kept:
                    c = torch.cat(kept)
                    out[b, rows, h] = torch.softmax(x[rows][:, c] * math.log(2), 1) @ v[b, c, h].double()
    return out, tested, skipped


def skipping(lib, D):
    for gain, threshold in ((4.0, -6.0), (6.0, -2.0), (3.0, 0.0), (1.0, -3.0)):
        for density, H in ((None, 2), (None, 70 if gain == 4.0 else 3), (0.5, 2)):
            B, S = 1, 1000
            torch.manual_seed(1)
            q, k, v = make(B, S, S, H, H, D, torch.bfloat16, "bshd", gain, seed=5)
            # Blocks of different size, so that whole tiles fall below others.
            k.mul_((torch.rand(1, ceil_div(S, 128), 1, 1, device="cuda") ** 2).repeat_interleave(128, 1)[:, :S].to(k.dtype))
            keep = None if density is None else torch.rand(B, H, ceil_div(S, TILE_Q), ceil_div(S, TILE_K), device="cuda") < density
            out = torch.full_like(q, math.nan)
            granules = torch.zeros(2, dtype=torch.int64, device="cuda")
            lib.run(lib.call(q, k, v, out, Plan(lib, keep, B, H, S, S, D), skip=threshold, granules=granules))
            ref, tested, skipped = skip_reference(q, k, v, keep, D ** -0.5, threshold)
            r = rel(out.double(), ref)
            # At a threshold of 0 rounding decides between tiles of equal maximum.
            ok = r < (5e-3 if threshold < 0 else 5e-2) and granules[0].item() == tested and abs(granules[1].item() - skipped) <= max(1, skipped // 50)
            report(ok, f"D{D} skip gain {gain} threshold {threshold} density {density} H{H}", f"rel {r:.2e} tested {granules.tolist()} expected {tested} {skipped}")


def large(lib):
    """Offsets past 2^31 elements, on sampled rows."""
    B, S, H, D = 2, 75600, 120, 128
    q = torch.randn(1, S, 1, D, device="cuda").to(torch.bfloat16).expand(B, S, H, D).contiguous()
    k = torch.randn(B, S, H, D, device="cuda", dtype=torch.bfloat16)
    v = torch.randn(B, S, H, D, device="cuda", dtype=torch.bfloat16)
    Gq, Gk = ceil_div(S, TILE_Q), ceil_div(S, TILE_K)
    keep = torch.rand(B, H, Gq, Gk, device="cuda") < 0.01
    out = torch.full_like(q, math.nan)
    lib.run(lib.call(q, k, v, out, Plan(lib, keep, B, H, S, S, D)))
    rows = torch.tensor([0, 127, 128, 40000, 75519, 75599], device="cuda")
    worst = 0.0
    for b, h in ((0, 0), (1, 60), (1, 119)):
        ref, _, _ = reference(q[b:b + 1, :, h:h + 1], k[b:b + 1, :, h:h + 1], v[b:b + 1, :, h:h + 1], keep[b:b + 1, h:h + 1], D ** -0.5, rows=rows)
        worst = max(worst, rel(out[b, rows, h].double(), ref[0, :, 0]))
    report(worst < 5e-3 and not bool(out.isnan().any()), f"{out.numel() / 2**31:.2f} x 2^31 elements", f"rel {worst:.2e}")


def captured(lib):
    """A call can be captured in a CUDA graph and replayed on new data in the same places."""
    B, S, H, D = 1, 1000, 4, 128
    q, k, v = make(B, S, S, H, H, D, torch.bfloat16, "bshd")
    keep = torch.rand(B, H, ceil_div(S, TILE_Q), ceil_div(S, TILE_K), device="cuda") < 0.5
    out = torch.full_like(q, math.nan)
    plan = Plan(lib, keep, B, H, S, S, D)
    call = lib.call(q, k, v, out, plan)
    lib.run(call)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        lib.run(call)
    q.copy_(torch.randn(q.shape, device="cuda"))
    graph.replay()
    first = out.clone()
    lib.run(call)
    report(torch.equal(first, out) and bool(torch.isfinite(out).all()), "graph capture and replay")


def refusals(lib):
    """What does not fit is refused with the argument's name, before any work."""
    q, k, v = make(1, 128, 128, 2, 2, 128, torch.bfloat16, "bshd")
    plan = Plan(lib, None, 1, 2, 128, 128, 128)
    odd = torch.zeros(1, 128, 2, 132, device="cuda", dtype=torch.bfloat16)[..., :128]
    cases = (("D", (q[..., :96], k[..., :96], v[..., :96]), {}), ("q", (odd, k, v), {}), ("v", (q, k, odd), {}), ("scale", (q, k, v), dict(scale=-1.0)),
             ("skip_threshold_log2", (q, k, v), dict(skip=1.0)), ("H", (q, torch.cat([k, k[:, :, :1]], 2), v), {}))
    for name, tensors, options in cases:
        try:
            lib.run(lib.call(*tensors, torch.empty_like(q), plan, **options))
            report(False, f"{name} refused", "it ran")
        except RuntimeError as e:
            report(f"] {name}: expected" in str(e), f"{name} refused", str(e))


def mini(lib):
    """Every kernel once at S = 256, for compute-sanitizer."""
    for D in DIMS:
        check(lib, f"D{D} dense", 1, 250, 256, 2, 2, D)
        # Enough rows that CTAs take several: pairs of CTAs for the dense plan, which racecheck cannot follow, lists otherwise.
        if "--no-pairs" not in sys.argv:
            check(lib, f"D{D} many dense rows", 1, 250, 250, 270, 270, D)
        check(lib, f"D{D} many listed rows", 1, 250, 250, 140, 140, D, density=0.7)
        check(lib, f"D{D} lists", 2, 256, 250, 2, 1, D, density=0.5, empty=True)
        check(lib, f"D{D} means", 1, 256, 250, 2, 2, D, density=0.5, means=True)
        check(lib, f"D{D} skip", 1, 256, 250, 2, 2, D, density=0.7, skip=-1e30)
        check(lib, f"D{D} redo", 1, 250, 250, 2, 2, D, gain=300.0)
        check(lib, f"D{D} skip means", 1, 256, 250, 2, 2, D, density=0.5, means=True, skip=-1e30)


DIMS = [int(d) for a in sys.argv if a.startswith("--dims=") for d in a[7:].split(",")] or [128, 64]


def main():
    lib = Library(sys.argv[1])
    if "--mini" in sys.argv:
        mini(lib)
        print(f"{count - failures} of {count} checks passed", flush=True)
        sys.exit(failures != 0)
    quick = "--quick" in sys.argv
    dtypes = [torch.bfloat16] if "--bf16" in sys.argv else [torch.bfloat16, torch.float16]
    torch.backends.cuda.matmul.allow_tf32 = False
    for D in DIMS:
        for dtype in dtypes:
            n = f"D{D} {str(dtype)[6:]}"
            for S in (1, 63, 64, 65, 127, 128, 129, 176, 1000, 4097):
                check(lib, f"{n} dense S{S}", 1, S, S, 2, 2, D, dtype)
            for Sq, Sk in ((100, 1000), (1000, 100), (256, 65), (1, 4096), (4096, 1)):
                check(lib, f"{n} dense Sq{Sq} Sk{Sk}", 2, Sq, Sk, 2, 1, D, dtype)
            for S in (65, 128, 1000, 2049, 4096):
                for density in (0.05, 0.3, 0.7):
                    check(lib, f"{n} density {density} S{S}", 1, S, S, 3, 3, D, dtype, density=density)
            for S in (1025, 1100):  # an odd and an even number of query tiles; enough of them for pairs of CTAs
                check(lib, f"{n} many dense rows S{S}", 2, S, S, 40, 20, D, dtype)
            check(lib, f"{n} many dense rows, lengths", 2, 1000, 1000, 40, 4, D, dtype, lengths=[333, 1000])
            check(lib, f"{n} many dense rows, growing scores", 2, 1000, 1000, 40, 4, D, dtype, peak=300.0)
            check(lib, f"{n} empty rows", 2, 1000, 1000, 4, 2, D, dtype, density=0.3, empty=True)
            for layout in ("bhsd", "slice"):
                check(lib, f"{n} {layout}", 2, 777, 1337, 4, 2, D, dtype, layout, density=0.5)
                check(lib, f"{n} {layout} dense", 2, 777, 1337, 4, 2, D, dtype, layout)
            check(lib, f"{n} logits to 1e4", 1, 1000, 1000, 2, 2, D, dtype, gain=300.0 if D == 128 else 400.0)
            for peak in (5.0, 20.0, 60.0, 300.0):
                check(lib, f"{n} growing scores {peak}", 1, 1000, 4097, 2, 2, D, dtype, peak=peak)
            check(lib, f"{n} growing scores, no-op skip", 1, 1000, 4097, 2, 2, D, dtype, peak=300.0, skip=-1e30)
            check(lib, f"{n} growing scores, means", 1, 1000, 4097, 2, 2, D, dtype, density=0.5, means=True, peak=20.0)
            check(lib, f"{n} key lengths", 3, 500, 1000, 2, 2, D, dtype, lengths=[1000, 64, 333])
            check(lib, f"{n} key lengths density", 3, 500, 1000, 2, 2, D, dtype, density=0.5, lengths=[1000, 65, 333])
            for S in (64, 1000, 4097, 9000):
                check(lib, f"{n} means S{S}", 1, S, S, 2, 2, D, dtype, density=0.2, means=True)
            check(lib, f"{n} means, lists empty", 2, 1000, 1000, 4, 2, D, dtype, density=0.2, means=True, empty=True)
            check(lib, f"{n} means lengths", 2, 500, 1000, 2, 2, D, dtype, density=0.3, means=True, lengths=[1000, 333])
            check(lib, f"{n} means no-op skip", 1, 1000, 1000, 2, 2, D, dtype, density=0.3, means=True, skip=-1e30)
            exactness(lib, D, dtype)
        structure(lib, D)
        skipping(lib, D)
    captured(lib)
    refusals(lib)
    if not quick:
        large(lib)
    print(f"{count - failures} of {count} checks passed", flush=True)
    sys.exit(failures != 0)


if __name__ == "__main__":
    main()
