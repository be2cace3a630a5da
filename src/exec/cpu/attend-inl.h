// The attention algorithm of the CPU executors in S^T form: scores have a key per row and a query per lane, so that maxima,
// sums and rescaling are vertical, without reductions across lanes. Included once per instruction set, after a vocabulary
// (device/cpu/vec_*.h) and with WINNOW_ISA naming the namespace; Products (products_*-inl.h) supplies the two matrix products:
//   S^T = K Q^T     O^T += V^T P^T
// A step is one unit of keys against one block of queries. Steps are visited in groups of up to kGroup units, block by block;
// the weights of a block's group form a batch, so that O is read and written once per batch. Three stages are pipelined:
// between the exponentials of one step, the scores of the next one and a part of the previous batch's product are woven in,
// because the tile unit is idle otherwise.
#pragma once

#include <cstdint>

#include "exec/cpu/row_task.h"

namespace winnow::WINNOW_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
// Rescaling O and l is put off until the maximum has grown by 2^8: weights stay below 2^8, and sums far from overflow.
constexpr float kLazyLog2 = 8.0F;
// Stands for a maximum of -inf, so that x - m is not -inf + inf.
constexpr float kLowest = -1e30F;

inline std::int64_t row_at(const std::int32_t* list, std::int64_t i) { return list != nullptr ? list[i] : i; }

inline V load_any(const Rows& rows, std::int64_t row, int d, int n) {
  const std::int64_t i = row_at(rows.list, row) * rows.stride + d;
  if (rows.format == Format::f32) {
    const float* p = static_cast<const float*>(rows.data) + i;
    return n < kLanes ? load_n(p, n) : load(p);
  }
  const std::uint16_t* p = static_cast<const std::uint16_t*>(rows.data) + i;
  if (rows.format == Format::bf16) return n < kLanes ? load_bf16_n(p, n) : load_bf16(p);
  return n < kLanes ? load_f16_n(p, n) : load_f16(p);
}

inline void store_any(void* data, Format format, std::int64_t i, V a, int n) {
  if (format == Format::f32) {
    float* p = static_cast<float*>(data) + i;
    return n < kLanes ? store_n(p, a, n) : store(p, a);
  }
  std::uint16_t* p = static_cast<std::uint16_t*>(data) + i;
  if (format == Format::bf16) return n < kLanes ? store_bf16_n(p, a, n) : store_bf16(p, a);
  return n < kLanes ? store_f16_n(p, a, n) : store_f16(p, a);
}

inline int least(int a, int b) { return a < b ? a : b; }
inline int round_up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

// Asks the cache for rows [begin, end) some hundred cycles before they are used: it keeps few misses in flight, and at a density
// of 0.1 a tenth of the time went by waiting for Q, V and O.
template <bool kToWrite>
inline void prefetch_rows(const Rows& rows, int begin, int end, int D) {
  const int bytes = rows.format == Format::f32 ? 4 : 2;  // of an element
  for (int row = begin; row < end; ++row) {
    const char* p = static_cast<const char*>(rows.data) + row_at(rows.list, row) * rows.stride * bytes;
    for (int at = 0; at < D * bytes; at += 64) __builtin_prefetch(p + at, kToWrite ? 1 : 0);
  }
}

inline void average_rows(const Rows& rows, std::int64_t n, int D, float* mean) {
  constexpr int kColumns = 4;  // vectors at a time: whole cache lines of 16-bit rows
  for (int d = 0; d < D; d += kColumns * kLanes) {
    V sum[kColumns];
    for (V& s : sum) s = zero();
    for (std::int64_t i = 0; i < n; ++i) {
      for (int c = 0; c < kColumns && d + c * kLanes < D; ++c) {
        sum[c] = add(sum[c], load_any(rows, i, d + c * kLanes, least(kLanes, D - d - c * kLanes)));
      }
    }
    for (int c = 0; c < kColumns && d + c * kLanes < D; ++c) {
      store_any(mean, Format::f32, d + c * kLanes, div(sum[c], set(static_cast<float>(n))), least(kLanes, D - d - c * kLanes));
    }
  }
}

// Polynomials for 2^f, f in [0,1]: minimax in relative error (Remez), 7.5e-5 and 1.9e-9 before rounding.
inline V exp2_bf16(V x) {
  const V f = fraction(x);
  V p = fma(set(0.0780245231F), f, set(0.226067155F));
  p = fma(p, f, set(0.695833541F));
  p = fma(p, f, set(0.999925219F));
  return scale2_floor(p, x);
}
inline V exp2_f32(V x) {
  const V f = fraction(x);
  V p = fma(set(0.000217022555F), f, set(0.00124396878F));
  p = fma(p, f, set(0.009678841F));
  p = fma(p, f, set(0.055483342F));
  p = fma(p, f, set(0.240229836F));
  p = fma(p, f, set(0.693146984F));
  p = fma(p, f, set(1.0F));
  return scale2_floor(p, x);
}

struct Unit {
  const unsigned char* k = nullptr;
  const unsigned char* v = nullptr;
  int keys = 0;
  bool may_skip = false;
  const float* bias_log2 = nullptr;  // [kUnitKeys] of virtual keys, else null
};

// One unit against one block of queries.
struct Step {
  Unit unit;
  int block = 0;
  int slot = 0;         // which of the two score buffers
  int left = 0;         // steps of this block in this group, this one included
  bool active = false;  // false: no step
};

// Weights of one block that wait for their product with V.
template <int kGroup>
struct Batch {
  Unit units[kGroup];
  int slots[kGroup] = {};  // weight buffers
  int count = 0;
  int block = 0;
  bool fresh = false;  // the block's first: O starts from zero
};

template <class Products>
class TaskRunner {
 public:
  static constexpr int kVectors = Products::kVectors;
  static constexpr int kGroup = Products::kGroup;
  static constexpr int kBlock = kVectors * kLanes;
  static constexpr int kMaxBlocks = kTaskRows / kBlock;

  explicit TaskRunner(RowTask& task) : task_(task), products_(task), blocks_((task.rows + kBlock - 1) / kBlock) {
    const V lowest = set(-kInfinity);
    for (int i = 0; i < kMaxBlocks * kVectors; ++i) {
      store(m_ + i * kLanes, lowest);
      store(top_ + i * kLanes, lowest);
      store(l_ + i * kLanes, zero());
    }
  }

  void run() {
    for (int block = 0; block < blocks_; ++block) {
      prefetch_rows<false>(task_.q, (block + 1) * kBlock, least((block + 2) * kBlock, task_.rows), task_.D);
      products_.load_queries(block);
    }
    for (const TileList& list : task_.lists) {
      for (std::int64_t i = 0; i < list.count; ++i) visit_tile(list.tiles[i]);
    }
    for (std::int64_t i = 0; i < task_.mean_count; ++i) {
      const std::int64_t u = task_.mean_list[i];
      const std::int64_t offset = u * products_.unit_bytes();
      push({task_.means.k + offset, task_.means.v + offset, kUnitKeys, false, task_.mean_bias_log2 + u * kUnitKeys});
    }
    compute_group(nullptr);
    products_.finish_product();
    for (int block = 0; block < blocks_; ++block) finish(block);
  }

 private:
  void visit_tile(std::int64_t tile) {
    const int in_tile = tile_keys(tile);
    std::int64_t u = tile * ((task_.tile_k + kUnitKeys - 1) / kUnitKeys);
    for (int done = 0; done < in_tile; done += kUnitKeys, ++u) {
      const std::int64_t offset = u * products_.unit_bytes();
      const bool may_skip = (task_.test_skip || task_.skip_gaps_log2 != nullptr) && task_.unit_finite[u] != 0;
      push({task_.units.k + offset, task_.units.v + offset, least(kUnitKeys, in_tile - done), may_skip, nullptr});
    }
  }

  int tile_keys(std::int64_t tile) const {
    if (task_.tile_begin != nullptr) return task_.tile_begin[tile + 1] - task_.tile_begin[tile];
    const std::int64_t left = task_.keys - tile * task_.tile_k;
    return left < task_.tile_k ? static_cast<int>(left) : task_.tile_k;
  }

  void push(const Unit& unit) {
    if (group_size_ == kGroup) compute_group(&unit);
    group_[group_size_++] = unit;
  }

  // All steps of the group; `following` is the first unit of the next group, or null.
  void compute_group(const Unit* following) {
    for (int block = 0; block < blocks_; ++block) {
      if (following == nullptr) {
        const Rows out = {task_.out, task_.out_stride, task_.out_format, task_.out_list};
        prefetch_rows<true>(out, block * kBlock, least((block + 1) * kBlock, task_.rows), task_.D);
      }
      for (int i = 0; i < group_size_; ++i) {
        if (!current_.active) {
          current_ = {group_[0], 0, 0, group_size_, true};
          products_.scores(current_);
        }
        current_.left = group_size_ - i;
        Step next;
        if (kGroup > 1 && i + 1 < group_size_) {
          next = {group_[i + 1], block, current_.slot ^ 1, 0, true};
        } else if (block + 1 < blocks_) {
          next = {group_[0], block + 1, current_.slot ^ 1, 0, true};
        } else if (following != nullptr) {
          next = {*following, 0, current_.slot ^ 1, 0, true};
        }
        advance(next);
        current_ = next;
      }
    }
    group_size_ = 0;
  }

  // Finishes the softmax of the current step and computes the scores of `next`, which may be none.
  void advance(const Step& next) {
    V c = set(task_.scale_log2);
    const bool keep = begin_softmax(current_, c);
    if (keep) {
      const int slot = kGroup == 1 ? current_.slot : batch_parity_ * kGroup + batch_.count;
      batch_.units[batch_.count] = current_.unit;
      batch_.slots[batch_.count++] = slot;
      batch_.block = current_.block;
      Exponentials exponentials(*this, current_, slot, c);
      products_.weave(next, current_.left, exponentials);
      exponentials.add_sums(*this, current_.block);
    } else {
      NoExponentials nothing;
      products_.weave(next, current_.left, nothing);
    }
    if (current_.left == 1) hand_over();
  }

  void hand_over() {
    products_.finish_product();
    if (batch_.count > 0) products_.begin_product(batch_);
    batch_.count = 0;
    batch_.fresh = false;
    batch_parity_ ^= 1;
  }

  float* scores_of(const Step& step, int vector) { return products_.scores_at(step.slot) + vector * kUnitKeys * kLanes; }

  // Maxima, vote, rescaling. Returns false if the step is skipped. c becomes the factor from stored scores to log2 units.
  bool begin_softmax(const Step& step, V& c) {
    const int padded = round_up(step.unit.keys, Products::kKeyStep);
    for (int j = 0; j < kVectors; ++j) {
      for (int key = step.unit.keys; key < padded; ++key) store(scores_of(step, j) + key * kLanes, set(-kInfinity));
    }
    if (step.unit.bias_log2 != nullptr) {
      add_bias(step, c);
      c = set(1.0F);
    }
    V top[kVectors];
    for (int j = 0; j < kVectors; ++j) top[j] = mul(maximum(scores_of(step, j), step.unit.keys), c);
    const bool first = !started_[step.block];
    if (task_.skip_gaps_log2 != nullptr && step.unit.bias_log2 == nullptr) store_gap(step, first, top);
    if (task_.test_skip && step.unit.bias_log2 == nullptr) {
      ++task_.tested;
      if (!first && step.unit.may_skip && products_.finite_queries(step.block) && vote(step.block, top)) {
        ++task_.skipped;
        return false;
      }
    }
    started_[step.block] = true;
    batch_.fresh = batch_.fresh || first;
    raise_maximum(step.block, first, top);
    return true;
  }

  void add_bias(const Step& step, V c) {
    for (int j = 0; j < kVectors; ++j) {
      float* s = scores_of(step, j);
      for (int key = 0; key < step.unit.keys; ++key) {
        const float bias = step.unit.bias_log2[key];
        // Not x + (-inf): a mean that does not count has no influence, not even if it is NaN.
        store(s + key * kLanes, bias == -kInfinity ? set(bias) : fma(load(s + key * kLanes), c, set(bias)));
      }
    }
  }

  // A NaN may be lost here; it comes back through the exponentials.
  static V maximum(const float* s, int keys) {
    V m[4];  // latency of max / its throughput, and then some
    for (V& x : m) x = load(s);
    int key = 0;
    for (; key + 4 <= keys; key += 4) {
      for (int i = 0; i < 4; ++i) m[i] = max(m[i], load(s + (key + i) * kLanes));
    }
    for (; key < keys; ++key) m[0] = max(m[0], load(s + key * kLanes));
    return max(max(m[0], m[1]), max(m[2], m[3]));
  }

  bool vote(int block, const V top[kVectors]) const {
    for (int j = 0; j < kVectors; ++j) {
      const int lanes = task_.rows - block * kBlock - j * kLanes;
      if (lanes <= 0) break;
      const V gap = sub(top[j], load(state(top_, block, j)));
      if (!all_less(gap, set(task_.skip_threshold_log2), least(lanes, kLanes))) return false;
    }
    return true;
  }

  // The threshold below which vote() keeps the unit.
  void store_gap(const Step& step, bool first, const V top[kVectors]) {
    float largest = first || !step.unit.may_skip || !products_.finite_queries(step.block) ? kInfinity : -kInfinity;
    for (int j = 0; j < kVectors; ++j) {
      alignas(64) float gap[kLanes];
      store(gap, sub(top[j], load(state(top_, step.block, j))));
      const int lanes = least(task_.rows - step.block * kBlock - j * kLanes, kLanes);
      for (int i = 0; i < lanes; ++i) {
        if (!(gap[i] <= largest)) largest = gap[i] == gap[i] ? gap[i] : kInfinity;
      }
    }
    const std::int64_t unit = (step.unit.k - task_.units.k) / products_.unit_bytes();
    task_.skip_gaps_log2[step.block * task_.gaps_per_block + unit] = largest;
  }

  void raise_maximum(int block, bool first, const V top[kVectors]) {
    bool rescale = first;
    for (int j = 0; j < kVectors; ++j) {
      float* true_top = state(top_, block, j);
      store(true_top, max(load(true_top), top[j]));
      rescale = rescale || any_less(add(load(state(m_, block, j)), set(kLazyLog2)), top[j]);
    }
    if (rescale) {
      V factor[kVectors];
      for (int j = 0; j < kVectors; ++j) {
        float* m = state(m_, block, j);
        float* l = state(l_, block, j);
        const V raised = max(set(kLowest), max(load(m), top[j]));
        factor[j] = exp2_f32(sub(load(m), raised));
        store(l, mul(load(l), factor[j]));
        store(m, raised);
      }
      if (!first) rescale_output(block, factor);
    }
  }

  // O has to be complete first: waiting weights are relative to the old maximum.
  void rescale_output(int block, const V factor[kVectors]) {
    products_.finish_product();
    if (batch_.count > 0) {
      products_.begin_product(batch_);
      products_.finish_product();
      batch_.count = 0;
      batch_.fresh = false;
    }
    products_.rescale(block, factor);
  }

  // P = 2^(c S - m), l += sum of P: called between other work, some pairs of keys at a time.
  class Exponentials {
   public:
    Exponentials(TaskRunner& runner, const Step& step, int slot, V c)
        : s_(runner.products_.scores_at(step.slot)),
          p_(runner.products_.weights_at(slot)),
          pairs_(round_up(step.unit.keys, Products::kKeyStep) / 2),
          c_(c) {
      for (int j = 0; j < kVectors; ++j) {
        sum_[j] = zero();
        neg_m_[j] = sub(zero(), load(state(runner.m_, step.block, j)));
      }
    }
    void spread_over(int calls) { per_call_ = calls == 0 ? 0 : (pairs_ + calls - 1) / calls; }
    void operator()() {
      for (int i = 0; i < per_call_ && pair_ < pairs_; ++i) next_pair();
    }
    void finish() {
      while (pair_ < pairs_) next_pair();
    }
    void add_sums(TaskRunner& runner, int block) const {
      for (int j = 0; j < kVectors; ++j) {
        float* l = state(runner.l_, block, j);
        store(l, add(load(l), sum_[j]));
      }
    }

   private:
    void next_pair() {
      for (int j = 0; j < kVectors; ++j) {
        const float* x = s_ + (j * kUnitKeys + 2 * pair_) * kLanes;
        const V even = Products::exp2(fma(load(x), c_, neg_m_[j]));
        const V odd = Products::exp2(fma(load(x + kLanes), c_, neg_m_[j]));
        sum_[j] = add(sum_[j], add(even, odd));
        Products::store_weights(p_, j, pair_, even, odd);
      }
      ++pair_;
    }

    const float* s_;
    typename Products::Weight* p_;
    int pairs_;
    int pair_ = 0;
    int per_call_ = 0;
    V c_;
    V sum_[kVectors];
    V neg_m_[kVectors];
  };
  struct NoExponentials {
    void spread_over(int) {}
    void operator()() {}
    void finish() {}
  };

  void finish(int block) {
    V inverse[kVectors];
    const bool empty = !started_[block];
    for (int j = 0; j < kVectors; ++j) inverse[j] = empty ? zero() : div(set(1.0F), load(state(l_, block, j)));
    products_.store_rows(block, inverse, empty);
    if (task_.state == nullptr) return;
    for (int i = block * kBlock; i < least(task_.rows, (block + 1) * kBlock); ++i) task_.state[i] = {m_[i], l_[i], top_[i]};
  }

  // Of the queries of one vector.
  static float* state(float* values, int block, int vector) { return values + (block * kVectors + vector) * kLanes; }
  static const float* state(const float* values, int block, int vector) { return values + (block * kVectors + vector) * kLanes; }

  RowTask& task_;
  Products products_;
  int blocks_;
  Unit group_[kGroup + 1];  // one more than used: compilers do not see that kGroup = 1 never reads group_[1]
  int group_size_ = 0;
  Step current_;          // its scores are ready
  Batch<kGroup> batch_;   // of the current block, growing
  int batch_parity_ = 0;  // the previous batch's weights are in the other half of the buffers
  bool started_[kMaxBlocks] = {};
  alignas(64) float m_[kTaskRows];    // what the weights are relative to
  alignas(64) float top_[kTaskRows];  // the true maximum
  alignas(64) float l_[kTaskRows];
};

template <class Products>
void attend_task(RowTask& task) {
  TaskRunner<Products> runner(task);
  runner.run();
}

}  // namespace
}  // namespace winnow::WINNOW_ISA
