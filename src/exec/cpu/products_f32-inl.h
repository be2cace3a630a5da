// The two products in f32 multiply-adds, for every instruction set. A is broadcast element by element from packed K or V rows,
// B is a vector of queries, and a register block of kRows x kVectors accumulators hides the latency of the multiply-adds.
// Units are [kUnitKeys, padded D] f32. Included after attend-inl.h.
#pragma once

#include <cstdint>

#include "exec/cpu/attend-inl.h"

namespace winnow::WINNOW_ISA {
namespace {

template <int kRows, int kVectors_>
class ProductsF32 {
 public:
  static constexpr int kVectors = kVectors_;
  static constexpr int kBlock = kVectors * kLanes;
  static constexpr int kKeyStep = 2;
  static constexpr int kGroup = 1;
  using Weight = float;
  static constexpr int kMaxBlocks = kTaskRows / kBlock;

  static int padded(int D) { return round_up(D, kRows); }
  static std::int64_t unit_bytes_of(int D) { return std::int64_t{kUnitKeys} * padded(D) * 4; }
  // Q [blocks][kVectors][D][kLanes], O the same with padded D, S [2][kVectors][kUnitKeys][kLanes], one row
  static std::int64_t scratch_bytes(int D) {
    return std::int64_t{4} * (kTaskRows * (D + padded(D)) + 2 * kBlock * kUnitKeys + padded(D) + 64);
  }

  static bool pack_k(const Rows& rows, int n, int D, unsigned char* unit) {
    pack(rows, n, D, unit);
    const float* p = reinterpret_cast<const float*>(unit);
    bool finite = true;
    for (int i = 0; i < n * padded(D); ++i) finite = finite && p[i] - p[i] == 0.0F;
    return finite;
  }
  static void pack(const Rows& rows, int n, int D, unsigned char* unit) {
    float* to = reinterpret_cast<float*>(unit);
    const int width = padded(D);
    for (int i = 0; i < n; ++i) copy_row(rows, i, D, width, to + i * width);
    for (int i = n * width; i < kUnitKeys * width; ++i) to[i] = 0.0F;
  }

  explicit ProductsF32(RowTask& task)
      : task_(task),
        D_(task.D),
        padded_(padded(task.D)),
        s_(reinterpret_cast<float*>(task.scratch)),
        q_(s_ + 2 * kBlock * kUnitKeys),
        o_(q_ + kTaskRows * D_),
        row_(o_ + kTaskRows * padded_) {}

  std::int64_t unit_bytes() const { return unit_bytes_of(D_); }
  float* scores_at(int slot) { return s_ + slot * kBlock * kUnitKeys; }
  bool finite_queries(int block) const { return finite_[block]; }

  void load_queries(int block) {
    float* q = q_ + block * kBlock * D_;
    finite_[block] = true;
    for (int i = 0; i < kBlock; ++i) {
      const int row = block * kBlock + i;
      const bool valid = row < task_.rows;
      if (valid) copy_row(task_.q, row, D_, D_, row_);
      float* to = q + i / kLanes * D_ * kLanes + i % kLanes;
      for (int d = 0; d < D_; ++d) {
        const float x = valid ? row_[d] : 0.0F;
        finite_[block] = finite_[block] && x - x == 0.0F;
        to[d * kLanes] = task_.negate_q ? -x : x;
      }
    }
  }

  // S[key][query] = sum over d of K[key][d] Q[query][d]
  void scores(const Step& step) {
    const float* k = reinterpret_cast<const float*>(step.unit.k);
    const float* q = q_ + step.block * kBlock * D_;
    float* s = scores_at(step.slot);
    for (int key = 0; key < step.unit.keys; key += kRows) {
      V acc[kRows][kVectors];
      clear(acc);
      for (int d = 0; d < D_; ++d) {
        V b[kVectors];
        for (int j = 0; j < kVectors; ++j) b[j] = load(q + (j * D_ + d) * kLanes);
        multiply(acc, k + key * padded_ + d, padded_, b);
      }
      for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < kVectors; ++j) store(s + (j * kUnitKeys + key + i) * kLanes, acc[i][j]);
    }
  }

  void begin_product(const Batch<1>& batch) { batch_ = batch; }
  // O[d][query] += sum over keys of V[key][d] P[key][query]. Each unit is summed on its own first: rounding errors grow with
  // the square root of the keys in a unit and of the units, not of all keys.
  void finish_product() {
    if (batch_.count == 0) return;
    batch_.count = 0;
    const Unit& unit = batch_.units[0];
    const float* v = reinterpret_cast<const float*>(unit.v);
    const float* p = weights_at(batch_.slots[0]);
    float* o = o_ + batch_.block * kBlock * padded_;
    for (int d = 0; d < padded_; d += kRows) {
      V acc[kRows][kVectors];
      clear(acc);
      for (int key = 0; key < unit.keys; ++key) {
        V b[kVectors];
        for (int j = 0; j < kVectors; ++j) b[j] = load(p + (j * kUnitKeys + key) * kLanes);
        multiply(acc, v + key * padded_ + d, 1, b);
      }
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kVectors; ++j) {
          float* to = o + (j * padded_ + d + i) * kLanes;
          store(to, batch_.fresh ? acc[i][j] : add(load(to), acc[i][j]));
        }
      }
    }
  }

  void rescale(int block, const V factor[kVectors]) {
    for (int j = 0; j < kVectors; ++j) {
      float* o = o_ + (block * kVectors + j) * padded_ * kLanes;
      for (int d = 0; d < padded_; ++d) store(o + d * kLanes, mul(load(o + d * kLanes), factor[j]));
    }
  }

  static V exp2(V x) { return exp2_f32(x); }
  // P takes the place of S.
  float* weights_at(int slot) { return scores_at(slot); }
  static void store_weights(float* p, int vector, int pair, V even, V odd) {
    p += (vector * kUnitKeys + 2 * pair) * kLanes;
    store(p, even);
    store(p + kLanes, odd);
  }

  void store_rows(int block, const V inverse[kVectors], bool empty) {
    for (int i = 0; i < kBlock && block * kBlock + i < task_.rows; ++i) {
      const int j = i / kLanes;
      const float* o = o_ + (block * kVectors + j) * padded_ * kLanes + i % kLanes;
      float factor[kLanes];
      store(factor, inverse[j]);
      for (int d = 0; d < D_; ++d) row_[d] = empty ? 0.0F : o[d * kLanes] * factor[i % kLanes];
      for (int d = 0; d < D_; d += kLanes) {
        const int n = least(kLanes, D_ - d);
        store_any(task_.out, task_.out_format, row_at(task_.out_list, block * kBlock + i) * task_.out_stride + d,
                  n < kLanes ? load_n(row_ + d, n) : load(row_ + d), n);
      }
    }
  }

  // Everything runs on the same multiply-adders, so nothing is woven in. The previous weights lie in the buffer that the next
  // scores go to: product first.
  template <class Exponentials>
  void weave(const Step& next, int, Exponentials& exponentials) {
    finish_product();
    exponentials.finish();
    if (next.active) scores(next);
  }

 private:
  static void copy_row(const Rows& rows, int row, int D, int width, float* to) {
    for (int d = 0; d < D; d += kLanes) {
      const int n = least(kLanes, D - d);
      const V x = load_any(rows, row, d, n);
      if (n < kLanes) {
        store_n(to + d, x, n);
      } else {
        store(to + d, x);
      }
    }
    for (int d = D; d < width; ++d) to[d] = 0.0F;
  }
  static void clear(V acc[kRows][kVectors]) {
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kVectors; ++j) acc[i][j] = zero();
  }
  // acc[i][j] += a[i * stride] b[j]
  static void multiply(V acc[kRows][kVectors], const float* a, std::int64_t stride, const V b[kVectors]) {
    for (int i = 0; i < kRows; ++i) {
      const V x = set(a[i * stride]);
      for (int j = 0; j < kVectors; ++j) acc[i][j] = fma(x, b[j], acc[i][j]);
    }
  }

  RowTask& task_;
  int D_;
  int padded_;
  float* s_;
  float* q_;
  float* o_;
  float* row_;
  Batch<1> batch_;
  bool finite_[kMaxBlocks] = {};
};

template <int kRows, int kVectors>
const CpuKernels* kernels_f32() {
  using Products = ProductsF32<kRows, kVectors>;
  static constexpr CpuKernels kKernels = {Products::kBlock,     Products::unit_bytes_of, Products::scratch_bytes,
                                          Products::pack_k,     Products::pack,          average_rows,
                                          attend_task<Products>};
  return &kKernels;
}

}  // namespace
}  // namespace winnow::WINNOW_ISA
