// The two products in AMX tiles: bf16 operands, f32 sums. Included after attend-inl.h, for AVX-512 + AMX.
//   S^T[keys,queries] = A B:  A = 16 keys x 32 of D, from packed K            B = Q^T, packed once per task
//   O^T[D,queries]   += A B:  A = 16 of D x 32 keys, from packed V^T          B = P^T, packed by store_weights
// The work is a sequence of columns: one row of 16 x 32 results in a pair of accumulator tiles, two dot products per A tile.
// Pairs alternate, and a column is stored some dot products after the next one has begun: stored at once, the pair's
// latency of 52 cycles and 32 lines of stores would leave the tile unit idle, a fifth of the time at D = 128.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "device/cpu/amx.h"
#include "exec/cpu/attend-inl.h"

namespace winnow::WINNOW_ISA {
namespace {

// 16 x 16 dwords.
inline void transpose16(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {  // pairs of rows: dwords
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {  // fours: r[4i+c] has columns c, c+4, c+8, c+12 of rows 4i..4i+3
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int c = 0; c < 4; ++c) {  // 128-bit lanes
    t[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xDD);
    t[8 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xDD);
  }
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
    r[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xDD);
    r[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xDD);
  }
}

// 32 elements of a row as bf16; those at and after n are zero.
inline __m512i load_bf16x32(const Rows& rows, std::int64_t row, int d, int n) {
  if (rows.format == Format::bf16) {
    const std::uint16_t* p = static_cast<const std::uint16_t*>(rows.data) + row_at(rows.list, row) * rows.stride + d;
    return _mm512_maskz_loadu_epi16(n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1, p);
  }
  const V low = load_any(rows, row, d, least(n, kLanes));
  const V high = n > kLanes ? load_any(rows, row, d + kLanes, least(n - kLanes, kLanes)) : zero();
  return _mm512_inserti64x4(_mm512_castsi256_si512(narrow_bf16(low)), narrow_bf16(high), 1);
}

inline __mmask32 not_finite_bf16(__m512i x) {
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  return _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
}

// Dwords of two bf16, rounded to nearest even: low half from a, high half from b. Finite values, infinities and the default NaN.
inline __m512i round_pairs_bf16(V a, V b) {
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i half = _mm512_set1_epi32(0x7FFF);
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
  const __m512i x = _mm512_add_epi32(_mm512_castps_si512(a), _mm512_add_epi32(half, _mm512_and_si512(low, one)));
  const __m512i high = _mm512_srli_epi32(_mm512_castps_si512(b), 16);
  const __m512i y = _mm512_add_epi32(_mm512_castps_si512(b), _mm512_add_epi32(half, _mm512_and_si512(high, one)));
  return _mm512_mask_blend_epi16(0xAAAAAAAAU, _mm512_srli_epi32(x, 16), y);
}

class ProductsAmx {
 public:
  static constexpr int kVectors = 2;
  static constexpr int kBlock = kVectors * kLanes;
  static constexpr int kKeyStep = 32;  // a tile of P^T holds 32 keys
  // O (16 KB per block at D = 128) is read and written once per group. 2 is as good, 1 and 8 are slower. 64 queries per block,
  // which halve the traffic of K and V, are slower too: S and P no longer fit the L1 cache (measured 0.25 against 0.30 of peak).
  static constexpr int kGroup = 4;
  using Weight = unsigned char;  // bf16 in tiles
  static constexpr int kMaxBlocks = kTaskRows / kBlock;

  static int padded(int D) { return round_up(D, 32); }
  static std::int64_t unit_bytes_of(int D) { return std::int64_t{kUnitKeys} * padded(D) * 2; }
  // S [2][kVectors][kUnitKeys][16] f32, P [2][kGroup][2][kVectors] tiles, Q [blocks][padded / 32][kVectors] tiles,
  // O [blocks][padded / 16][kVectors] tiles
  static std::int64_t scratch_bytes(int D) {
    return 2 * kScoreBytes + 2 * kGroup * kWeightBytes + std::int64_t{kTaskRows} * padded(D) * (2 + 4);
  }

  // K unit: [kUnitKeys / 16][padded / 32] tiles of 16 keys x 32 of D, in the order of use.
  static bool pack_k(const Rows& rows, int n, int D, unsigned char* unit) {
    const int slices = padded(D) / 32;
    __mmask32 bad = 0;
    for (int key = 0; key < kUnitKeys; ++key) {
      for (int slice = 0; slice < slices; ++slice) {
        const __m512i x = key < n ? load_bf16x32(rows, key, 32 * slice, D - 32 * slice) : _mm512_setzero_si512();
        bad |= not_finite_bf16(x);
        const int tile = key / 16 * slices + slice;
        _mm512_store_si512(unit + tile * amx::kTileBytes + key % 16 * 64, x);
      }
    }
    return bad == 0;
  }

  // V unit: [padded / 16][kUnitKeys / 32] tiles of 16 of D x 32 keys, in the order of use.
  static void pack_v(const Rows& rows, int n, int D, unsigned char* unit) {
    prefetch_rows<false>(rows, 0, n, D);  // the loops below go down its columns
    for (int d = 0; d < padded(D); d += 32) {
      for (int key = 0; key < kUnitKeys; key += 32) {
        __m512i low[16];   // of D: 0-3, 8-11, 16-19, 24-27; a dword is a pair of keys
        __m512i high[16];  // of D: 4-7, 12-15, 20-23, 28-31
        for (int pair = 0; pair < 16; ++pair) {
          const int k = key + 2 * pair;
          const __m512i even = k < n ? load_bf16x32(rows, k, d, D - d) : _mm512_setzero_si512();
          const __m512i odd = k + 1 < n ? load_bf16x32(rows, k + 1, d, D - d) : _mm512_setzero_si512();
          low[pair] = _mm512_unpacklo_epi16(even, odd);
          high[pair] = _mm512_unpackhi_epi16(even, odd);
        }
        transpose16(low);
        transpose16(high);
        for (int i = 0; i < 16; ++i) {
          const int row = i / 4 * 8 + i % 4;  // of 32
          for (int r = row; r < row + 8; r += 4) {
            const int tile = (d + r) / 16 * (kUnitKeys / 32) + key / 32;
            _mm512_store_si512(unit + tile * amx::kTileBytes + r % 16 * 64, r == row ? low[i] : high[i]);
          }
        }
      }
    }
  }

  explicit ProductsAmx(RowTask& task)
      : task_(task),
        slices_(padded(task.D) / 32),
        s_(task.scratch),
        p_(s_ + 2 * kScoreBytes),
        q_(p_ + 2 * kGroup * kWeightBytes),
        o_(q_ + std::int64_t{kTaskRows} * padded(task.D) * 2) {
    amx::configure();
  }
  ~ProductsAmx() { amx::release(); }
  ProductsAmx(const ProductsAmx&) = delete;
  ProductsAmx& operator=(const ProductsAmx&) = delete;

  std::int64_t unit_bytes() const { return unit_bytes_of(task_.D); }
  float* scores_at(int slot) { return reinterpret_cast<float*>(s_ + slot * kScoreBytes); }
  bool finite_queries(int block) const { return finite_[block]; }

  void load_queries(int block) {
    __mmask32 bad = 0;
    const __m512i sign = _mm512_set1_epi16(task_.negate_q ? -0x8000 : 0);
    for (int slice = 0; slice < slices_; ++slice) {
      for (int j = 0; j < kVectors; ++j) {
        __m512i r[16];
        for (int i = 0; i < 16; ++i) {
          const int row = block * kBlock + j * kLanes + i;
          r[i] = row < task_.rows ? load_bf16x32(task_.q, row, 32 * slice, task_.D - 32 * slice) : _mm512_setzero_si512();
          bad |= not_finite_bf16(r[i]);
          r[i] = _mm512_xor_si512(r[i], sign);
        }
        transpose16(r);
        unsigned char* tile = query_tiles(block) + (slice * kVectors + j) * amx::kTileBytes;
        for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + i * 64, r[i]);
      }
    }
    finite_[block] = bad == 0;
  }

  struct Nothing {
    void operator()() {}
  };
  void scores(const Step& step) {
    Nothing nothing;
    run_columns(step, 0, nothing);
  }

  void begin_product(const Batch<kGroup>& batch) {
    product_ = Product();
    for (int i = 0; i < batch.count; ++i) {
      for (int chunk = 0; chunk * 32 < batch.units[i].keys; ++chunk) {
        product_.v[product_.chunks] = batch.units[i].v + chunk * amx::kTileBytes;
        product_.p[product_.chunks++] = weights_at(batch.slots[i]) + chunk * kVectors * amx::kTileBytes;
      }
    }
    product_.o = output_tiles(batch.block);
    product_.fresh = batch.fresh;
    product_.left = 2 * slices_;
  }
  void finish_product() {
    Nothing nothing;
    run_columns(Step(), product_.left, nothing);
  }

  static V exp2(V x) { return exp2_bf16(x); }

  unsigned char* weights_at(int slot) { return p_ + slot * kWeightBytes; }
  // Rows 2 pair and 2 pair + 1 of P, rounded to the nearest bf16, become one row of a B tile: dwords of two keys. In integer
  // arithmetic, because vcvtne2ps2bf16 is slower and leaves the halves to be interleaved. Weights are no NaN with a mantissa
  // of all ones, the only value that the addition would spoil.
  static void store_weights(unsigned char* p, int vector, int pair, V even, V odd) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
    const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
    unsigned char* tile = p + (pair / 16 * kVectors + vector) * amx::kTileBytes;
    _mm512_store_si512(tile + pair % 16 * 64, _mm512_mask_blend_epi16(0xAAAAAAAAU, low, high));
  }

  void rescale(int block, const V factor[kVectors]) {
    for (int tile = 0; tile < 2 * slices_ * kVectors; ++tile) {
      float* o = reinterpret_cast<float*>(output_tiles(block) + tile * amx::kTileBytes);
      for (int i = 0; i < 16; ++i) store(o + i * kLanes, mul(load(o + i * kLanes), factor[tile % kVectors]));
    }
  }

  void store_rows(int block, const V inverse[kVectors], bool empty) {
    for (int slice = 0; slice < slices_; ++slice) {
      for (int j = 0; j < kVectors; ++j) {
        const int row = block * kBlock + j * kLanes;
        if (row >= task_.rows) continue;
        float* o = reinterpret_cast<float*>(output_tiles(block) + (2 * slice * kVectors + j) * amx::kTileBytes);
        const int n = least(kLanes, task_.rows - row);
        if (empty) {
          zero_tile(o);
          zero_tile(o + kVectors * amx::kTileBytes / 4);
        }
        if (task_.out_format == Format::bf16) {
          store_bf16_rows(o, inverse[j], row, n, 32 * slice);
        } else {
          store_any_rows(o, inverse[j], row, n, 32 * slice);
          if (32 * slice + 16 < task_.D) store_any_rows(o + kVectors * amx::kTileBytes / 4, inverse[j], row, n, 32 * slice + 16);
        }
      }
    }
  }

  // The product of one batch.
  struct Product {
    const unsigned char* v[2 * kGroup] = {};  // chunks of 32 keys
    const unsigned char* p[2 * kGroup] = {};
    unsigned char* o = nullptr;  // next column's two tiles
    int chunks = 0;
    int left = 0;    // columns
    int column = 0;  // the next one
    bool fresh = false;
  };

  // Computes the next scores and this step's share of the pending product, and spreads the exponentials between.
  template <class Exponentials>
  void weave(const Step& next, int steps_left, Exponentials& exponentials) {
    const int product_columns = (product_.left + steps_left - 1) / steps_left;
    const int dots = (next.active ? (next.unit.keys + 31) / 32 * 2 * slices_ : 0) + product_columns * product_.chunks;
    exponentials.spread_over(dots);
    run_columns(next, product_columns, exponentials);
    exponentials.finish();
  }

 private:
  static constexpr int kScoreBytes = kVectors * kUnitKeys * kLanes * 4;
  static constexpr int kWeightBytes = 2 * kVectors * amx::kTileBytes;

  // Stores of a column begin after this many dot products of the next one: their own latency is over then.
  static constexpr int kSaveAt = 2;

  // A column's two tiles in memory.
  struct Place {
    unsigned char* first = nullptr;  // null: nothing to store
    std::int64_t stride = 0;
  };

  template <class Between>
  void run_columns(const Step& next, int product_columns, Between& between) {
    Place unsaved;
    if (next.active) {
      const unsigned char* q = query_tiles(next.block);
      const unsigned char* k = next.unit.k;
      unsigned char* s = s_ + next.slot * kScoreBytes;
      for (int columns = (next.unit.keys + 31) / 32 * 2; columns > 0; columns -= 2) {
        score_column<0>(k, q, {s, kUnitKeys * 64}, unsaved, between);
        k += slices_ * amx::kTileBytes;
        score_column<1>(k, q, {s + amx::kTileBytes, kUnitKeys * 64}, unsaved, between);
        k += slices_ * amx::kTileBytes;
        s += 2 * amx::kTileBytes;
      }
    }
    product_.left -= product_columns;
    for (; product_columns > 1; product_columns -= 2) {
      product_column<0>(unsaved, between);
      product_column<1>(unsaved, between);
    }
    if (product_columns > 0) {
      product_column<0>(unsaved, between);
      save<0>(unsaved);
    } else {
      save<1>(unsaved);
    }
  }

  template <int kPair, class Between>
  void score_column(const unsigned char* k, const unsigned char* q, Place place, Place& unsaved, Between& between) {
    amx::zero<2 * kPair>();
    amx::zero<2 * kPair + 1>();
    const int save_at = least(kSaveAt, slices_ - 1);
    const int slices = slices_;
    for (int slice = 0; slice < slices; ++slice) {
      dot<kPair>(k, q);
      k += amx::kTileBytes;
      q += kVectors * amx::kTileBytes;
      if (slice == save_at) save<1 - kPair>(unsaved);
      between();
    }
    unsaved = place;
  }

  template <int kPair, class Between>
  void product_column(Place& unsaved, Between& between) {
    unsigned char* o = product_.o;
    if (product_.fresh) {
      amx::zero<2 * kPair>();
      amx::zero<2 * kPair + 1>();
    } else {
      amx::load<2 * kPair>(o);
      amx::load<2 * kPair + 1>(o + amx::kTileBytes);
    }
    const int chunks = product_.chunks;
    const std::int64_t offset = product_.column++ * std::int64_t{kUnitKeys / 32 * amx::kTileBytes};
    const int save_at = least(kSaveAt, chunks - 1);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      dot<kPair>(product_.v[chunk] + offset, product_.p[chunk]);
      if (chunk == save_at) save<1 - kPair>(unsaved);
      between();
    }
    product_.o += kVectors * amx::kTileBytes;
    unsaved = {o, amx::kTileBytes};
  }

  // K and V pass by; S, P and Q stay in L1 (a tenth faster).
  template <int kPair>
  static void dot(const unsigned char* a, const unsigned char* b) {
    amx::load_once<4 + kPair>(a);
    amx::load<6>(b);
    amx::load<7>(b + amx::kTileBytes);
    amx::dot_bf16<2 * kPair, 4 + kPair, 6>();
    amx::dot_bf16<2 * kPair + 1, 4 + kPair, 7>();
  }

  // Stores the finished column in that pair, if it has not been stored yet.
  template <int kPair>
  static void save(Place& place) {
    if (place.first == nullptr) return;
    amx::store<2 * kPair>(place.first);
    amx::store<2 * kPair + 1>(place.first + place.stride);
    place.first = nullptr;
  }

  static void zero_tile(float* tile) {
    for (int i = 0; i < 16; ++i) store(tile + i * kLanes, zero());
  }
  // 16 of D x 16 queries.
  void store_any_rows(const float* o, V inverse, int row, int n, int d) {
    __m512i r[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_castps_si512(mul(load(o + i * kLanes), inverse));
    transpose16(r);
    for (int i = 0; i < n; ++i) {
      store_any(task_.out, task_.out_format, row_at(task_.out_list, row + i) * task_.out_stride + d, _mm512_castsi512_ps(r[i]),
                least(16, task_.D - d));
    }
  }
  // 32 of D x 16 queries: rounded first, so that half the data has to be transposed.
  void store_bf16_rows(const float* o, V inverse, int row, int n, int d) {
    __m512i r[16];
    for (int i = 0; i < 16; ++i) {
      const float* pair = o + i / 8 * kVectors * (amx::kTileBytes / 4) + i % 8 * 2 * kLanes;
      r[i] = round_pairs_bf16(mul(load(pair), inverse), mul(load(pair + kLanes), inverse));
    }
    transpose16(r);
    const int width = task_.D - d;
    const __mmask32 mask = width >= 32 ? ~__mmask32{0} : (__mmask32{1} << width) - 1;
    std::uint16_t* out = static_cast<std::uint16_t*>(task_.out) + d;
    for (int i = 0; i < n; ++i) _mm512_mask_storeu_epi16(out + row_at(task_.out_list, row + i) * task_.out_stride, mask, r[i]);
  }

  unsigned char* query_tiles(int block) { return q_ + std::int64_t{block} * slices_ * kVectors * amx::kTileBytes; }
  unsigned char* output_tiles(int block) { return o_ + std::int64_t{block} * 2 * slices_ * kVectors * amx::kTileBytes; }

  RowTask& task_;
  int slices_;  // of 32 along D
  unsigned char* s_;
  unsigned char* p_;
  unsigned char* q_;
  unsigned char* o_;
  Product product_;
  bool finite_[kMaxBlocks] = {};
};

}  // namespace
}  // namespace winnow::WINNOW_ISA
