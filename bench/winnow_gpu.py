"""The CUDA attention kernel from torch tensors, through the C entry points of attend_gpu_c.cu.

For bench/attend_gpu.py. Tensors are [B,S,H,D] with any strides of B, S, H.
"""
import ctypes
import math

import torch

P, I64, I32, F32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float
TILE_Q, TILE_K = 128, 64


class Strided(ctypes.Structure):
    _fields_ = [("data", P), ("b", I64), ("s", I64), ("h", I64)]


class Stats(ctypes.Structure):
    _fields_ = [("data", P), ("b", I64), ("h", I64), ("s", I64)]


class Call(ctypes.Structure):
    _fields_ = [("operand", I32), ("D", I32), ("B", I64), ("H", I64), ("Hk", I64), ("Sq", I64), ("Sk", I64),
                ("q", Strided), ("k", Strided), ("v", Strided), ("out", Strided),
                ("offsets", P), ("tiles", P), ("list_period", I64), ("order", P), ("key_lengths", P),
                ("k_mean", Strided), ("v_mean", Strided), ("mean_bits", P), ("layout", P * 6),
                ("lse", Stats), ("inv_l", Stats), ("scale", F32), ("skip_threshold_log2", F32),
                ("granules", P), ("scratch", P)]


def ceil_div(a, b):
    return -(-a // b)


def pointer(t):
    return None if t is None else t.data_ptr()


def strided(t):
    return Strided() if t is None else Strided(t.data_ptr(), t.stride(0), t.stride(1), t.stride(2))


def stats(t):
    return Stats() if t is None else Stats(t.data_ptr(), t.stride(0), t.stride(1), t.stride(2))


class Plan:
    """Lists in device memory from keep [B,H,Gq,Gk] bool, or the identity plan from None."""

    def __init__(self, lib, keep, B, H, Sq, Sk, D, key_lengths=None, means=False, excluded=None, sort=True):
        self.keep = keep
        self.key_lengths = None if key_lengths is None else torch.tensor(key_lengths, dtype=torch.int32, device="cuda")
        rows = B * H * ceil_div(Sq, TILE_Q)
        self.offsets = self.tiles = self.order = self.mean_bits = None
        if keep is not None:
            flat = keep.reshape(rows, -1)
            self.offsets = torch.zeros(rows + 1, dtype=torch.int64, device="cuda")
            self.offsets[1:] = flat.sum(1).cumsum(0)
            self.tiles = flat.nonzero()[:, 1].to(torch.int32).contiguous()
            if sort:
                self.order = torch.empty(rows, dtype=torch.int32, device="cuda")
                # K and V of a group of heads fit in about 30 MB of the 60 MB L2 cache.
                heads = max(1, int(30e6 // (Sk * D * 4)))
                lib.order_rows(self.offsets, self.order, rows, heads * ceil_div(Sq, TILE_Q))
        if means:
            words = ceil_div(ceil_div(Sk, TILE_K), 128) * 4
            self.mean_bits = torch.empty(rows, words, dtype=torch.int32, device="cuda")
            ex_offsets = ex_tiles = None
            if excluded is not None:
                flat = excluded.reshape(rows, -1)
                ex_offsets = torch.zeros(rows + 1, dtype=torch.int64, device="cuda")
                ex_offsets[1:] = flat.sum(1).cumsum(0)
                ex_tiles = flat.nonzero()[:, 1].to(torch.int32).contiguous()
            lib.mark_means(self.mean_bits, rows, rows // B, Sk, self.key_lengths, self.offsets, self.tiles, ex_offsets, ex_tiles)


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.scratch = None
        self.error = ctypes.create_string_buffer(512)

    def _run(self, function, *args):
        stream = P(torch.cuda.current_stream().cuda_stream)
        if function(*args, stream, self.error, 512) != 0:
            raise RuntimeError(self.error.value.decode())

    def order_rows(self, offsets, order, rows, rows_per_group):
        self._run(self.lib.winnow_gpu_order_rows, P(pointer(offsets)), P(pointer(order)), I64(rows), I64(rows_per_group))

    def mark_means(self, bits, rows, rows_per_batch, Sk, key_lengths, offsets, tiles, ex_offsets, ex_tiles):
        self._run(self.lib.winnow_gpu_mark_means, P(pointer(bits)), I64(rows), I64(rows_per_batch), I64(Sk), P(pointer(key_lengths)),
                  P(pointer(offsets)), P(pointer(tiles)), None, None, P(pointer(ex_offsets)), P(pointer(ex_tiles)))

    def call(self, q, k, v, out, plan, scale=None, k_mean=None, v_mean=None, lse=None, inv_l=None, skip=-math.inf, granules=None):
        """A prepared call: run it with self.run(call). Keep the tensors alive meanwhile."""
        c = Call()
        c.operand = 0 if q.dtype == torch.bfloat16 else 1
        c.B, c.Sq, c.H, c.D = q.shape
        c.Sk, c.Hk = k.shape[1], k.shape[2]
        c.q, c.k, c.v, c.out = strided(q), strided(k), strided(v), strided(out)
        c.offsets, c.tiles, c.order = pointer(plan.offsets), pointer(plan.tiles), pointer(plan.order)
        c.key_lengths, c.mean_bits = pointer(plan.key_lengths), pointer(plan.mean_bits)
        c.k_mean, c.v_mean = strided(k_mean), strided(v_mean)
        c.lse, c.inv_l = stats(lse), stats(inv_l)
        c.scale = q.shape[3] ** -0.5 if scale is None else scale
        c.skip_threshold_log2 = skip
        # One scratch for all calls of this library: they run on one stream.
        words = 4 + 2 * c.B * c.H * ceil_div(c.Sq, TILE_Q)
        if self.scratch is None or self.scratch.numel() < words:
            self.old = (getattr(self, "old", None), self.scratch)  # prepared calls still point to it
            self.scratch = torch.empty(words, dtype=torch.int32, device="cuda")
        c.granules, c.scratch = pointer(granules), pointer(self.scratch)
        return c

    def run(self, call):
        self._run(self.lib.winnow_gpu_attend, ctypes.byref(call))


def key_means(x, key_lengths=None):
    """[B,Sk,Hk,D] -> [B,ceil(Sk/64),Hk,D]: means of 64 tokens, over the valid ones only. f64 sums, x's dtype."""
    B, S, H, D = x.shape
    G = ceil_div(S, TILE_K)
    lengths = torch.full((B,), S, device="cuda") if key_lengths is None else key_lengths.to("cuda").long()
    valid = torch.arange(G * TILE_K, device="cuda")[None] < lengths[:, None]
    padded = torch.zeros(B, G * TILE_K, H, D, dtype=torch.float64, device="cuda")
    padded[:, :S] = x.double()
    padded = torch.where(valid[:, :, None, None], padded, 0.0)
    count = valid.reshape(B, G, TILE_K).sum(2).clamp(min=1)
    return (padded.reshape(B, G, TILE_K, H, D).sum(2) / count[:, :, None, None]).to(x.dtype)
