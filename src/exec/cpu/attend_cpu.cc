#include "exec/cpu/attend_cpu.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <span>

#include "core/threads.h"
#include "exec/tokens.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Key heads are packed and computed in groups, so that packed copies take this much memory, not twice that of K and V.
constexpr std::int64_t kGroupBytes = std::int64_t{64} << 20;
constexpr std::int64_t kSmallTaskRows = 128;
constexpr std::int64_t kItemsPerThread = 4;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

Format format_of(DType dtype) {
  if (dtype == DType::f32) return Format::f32;
  return dtype == DType::bf16 ? Format::bf16 : Format::f16;
}

// One (batch, key head) of the current group.
struct KeyHead {
  std::int64_t b;
  std::int64_t hk;
  unsigned char* k;       // [units, unit_bytes]
  unsigned char* v;       // [units, unit_bytes]
  unsigned char* finite;  // [units]
  unsigned char* mean_k;  // [mean_units, unit_bytes]
  unsigned char* mean_v;  // [mean_units, unit_bytes]
};

// Up to kTaskRows queries of one plan row, or of several with equal lists.
struct Item {
  std::int64_t cost;
  std::int64_t row;       // the first
  std::int64_t position;  // of the first query
  std::int32_t queries;
  std::int32_t head;  // index into the group
};

// The keys at positions [begin, begin + count) that one virtual key stands for; none in a gap.
struct MeanKeys {
  std::int64_t begin;
  std::int64_t count;
};

struct ThreadScratch {
  unsigned char* kernel;
  RowState* state;          // [kTaskRows]
  float* mean_bias_log2;    // [mean_units, kUnitKeys]
  std::int32_t* mean_list;  // [mean_units]
  float* mean_k;            // [kUnitKeys, D]
  float* mean_v;            // [kUnitKeys, D]
};

class Call {
 public:
  Call(const CpuKernels& kernels, const AttendArgs& a, Workspace& ws)
      : kernels_(kernels),
        a_(a),
        g_(a.plan->geometry()),
        means_(a.plan->skipped() == Skipped::mean),
        units_per_tile_(ceil_div(g_.tile_k, kUnitKeys)),
        units_(g_.Gk() * units_per_tile_),
        mean_units_(means_ ? count_mean_units() : 0),
        unit_bytes_(kernels.unit_bytes(a.D)),
        items_per_row_(ceil_div(g_.tile_q, kSmallTaskRows)),
        ws_(ws) {}

  SkipCounts run() {
    clear_missing_queries(a_);
    if (g_.Gq() == 0) return {};
    const std::int64_t heads = a_.B * a_.Hk;
    const std::int64_t head_bytes = std::max<std::int64_t>(2 * (units_ + mean_units_) * unit_bytes_, 1);
    const std::int64_t head_items = a_.H / a_.Hk * g_.Gq() * items_per_row_;
    const int threads = num_threads();
    const std::int64_t group = std::min(heads, std::max(kGroupBytes / head_bytes, ceil_div(std::int64_t{8} * threads, head_items)));
    allocate(group, head_items, threads);
    if (means_ && g_.key_layout) number_means();
    for (std::int64_t begin = 0; begin < heads; begin += group) {
      const std::int64_t n = std::min(group, heads - begin);
      for (std::int64_t i = 0; i < n; ++i) {
        heads_[i].b = (begin + i) / a_.Hk;
        heads_[i].hk = (begin + i) % a_.Hk;
      }
      parallel_for(n * units_, [&](std::int64_t i, int) { pack(heads_[i / units_], i % units_); });
      if (means_)
        parallel_for(n * mean_units_, [&](std::int64_t i, int w) { pack_means(heads_[i / mean_units_], i % mean_units_, threads_[w]); });
      const std::int64_t items = list_items(n);
      parallel_for(items, [&](std::int64_t i, int w) { compute(items_[i], threads_[w]); });
    }
    return {tested_.load(), skipped_.load()};
  }

 private:
  template <class T>
  T* take(std::int64_t count) {
    return ws_.allocate<T>(static_cast<std::size_t>(count));
  }

  void allocate(std::int64_t group, std::int64_t head_items, int threads) {
    heads_ = take<KeyHead>(group);
    for (std::int64_t i = 0; i < group; ++i) {
      heads_[i] = {0,
                   0,
                   take<unsigned char>(units_ * unit_bytes_),
                   take<unsigned char>(units_ * unit_bytes_),
                   take<unsigned char>(units_),
                   take<unsigned char>(mean_units_ * unit_bytes_),
                   take<unsigned char>(mean_units_ * unit_bytes_)};
    }
    items_ = take<Item>(group * head_items);
    if (means_ && g_.key_layout) {
      mean_slots_ = take<std::int32_t>(g_.Gk());
      mean_keys_ = take<MeanKeys>(mean_units_ * kUnitKeys);
      mean_log2_ = take<float>(mean_units_ * kUnitKeys);
    }
    threads_ = take<ThreadScratch>(threads);
    for (int w = 0; w < threads; ++w) {
      threads_[w] = {take<unsigned char>(kernels_.scratch_bytes(a_.D)),
                     take<RowState>(kTaskRows),
                     take<float>(mean_units_ * kUnitKeys),
                     take<std::int32_t>(mean_units_),
                     take<float>(means_ ? kUnitKeys * a_.D : 0),
                     take<float>(means_ ? kUnitKeys * a_.D : 0)};
    }
  }

  // From a position on; `tokens` is what positions mean.
  Rows rows(const void* data, const Strides& strides, std::int64_t b, std::int64_t position, std::int64_t head,
            const std::int32_t* tokens) const {
    const std::int64_t offset = b * strides.batch + head * strides.head + (tokens == nullptr ? position * strides.token : 0);
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(a_.dtype));
    return {static_cast<const std::byte*>(data) + offset * bytes, strides.token, format_of(a_.dtype),
            tokens == nullptr ? nullptr : tokens + position};
  }
  Rows k_rows(const KeyHead& head, std::int64_t position) const {
    return rows(a_.k, a_.k_strides, head.b, position, head.hk, g_.key_tokens());
  }
  Rows v_rows(const KeyHead& head, std::int64_t position) const {
    return rows(a_.v, a_.v_strides, head.b, position, head.hk, g_.key_tokens());
  }

  void pack(const KeyHead& head, std::int64_t unit) {
    const std::int64_t tile = unit / units_per_tile_;
    const std::int64_t begin = g_.key_begin(head.b, tile) + unit % units_per_tile_ * kUnitKeys;
    const std::int64_t end = std::min(begin + kUnitKeys, g_.key_begin(head.b, tile + 1));
    if (begin >= end) return;  // no list names it
    const auto n = static_cast<int>(end - begin);
    head.finite[unit] = static_cast<unsigned char>(kernels_.pack_k(k_rows(head, begin), n, a_.D, head.k + unit * unit_bytes_));
    kernels_.pack_v(v_rows(head, begin), n, a_.D, head.v + unit * unit_bytes_);
  }

  // Virtual keys are numbered by slots: those of a tile follow each other. Without a layout the only short tile is the last one,
  // and slot c is keys [c*mean_group, ...). With one, every tile has as many slots as it needs, and the first of a document
  // begins a unit: no unit is shared by two documents, whose values could otherwise meet as 0 * NaN.
  std::int64_t count_mean_units() const {
    if (!g_.key_layout) return ceil_div(ceil_div(a_.Sk, g_.mean_group), kUnitKeys);
    std::int64_t units = 0;
    for_each_document([&](TileRange tiles) {
      std::int64_t slots = 0;
      for (std::int64_t t = tiles.begin; t < tiles.end; ++t) slots += ceil_div(g_.tile_keys(0, t), g_.mean_group);
      units += ceil_div(slots, kUnitKeys);
    });
    return units;
  }

  void number_means() {
    std::int64_t slot = 0;
    std::fill_n(mean_keys_, mean_units_ * kUnitKeys, MeanKeys{0, 0});
    std::fill_n(mean_log2_, mean_units_ * kUnitKeys, -kInfinity);
    for_each_document([&](TileRange tiles) {
      slot = ceil_div(slot, kUnitKeys) * kUnitKeys;
      for (std::int64_t t = tiles.begin; t < tiles.end; ++t) {
        mean_slots_[t] = static_cast<std::int32_t>(slot);
        const std::int64_t end = g_.key_begin(0, t + 1);
        for (std::int64_t begin = g_.key_begin(0, t); begin < end; begin += g_.mean_group, ++slot) {
          mean_keys_[slot] = {begin, std::min<std::int64_t>(g_.mean_group, end - begin)};
          mean_log2_[slot] = std::log2(static_cast<float>(mean_keys_[slot].count));
        }
      }
    });
  }

  template <class F>
  void for_each_document(F f) const {
    for (std::int64_t d = 0; d < g_.key_layout->documents(); ++d) f(g_.key_layout->document_tiles(d));
  }

  std::int64_t virtual_keys(std::int64_t b) const { return ceil_div(g_.keys(b), g_.mean_group); }

  MeanKeys mean_keys(std::int64_t b, std::int64_t slot) const {
    if (g_.key_layout) return mean_keys_[slot];
    return {slot * g_.mean_group, std::clamp<std::int64_t>(g_.keys(b) - slot * g_.mean_group, 0, g_.mean_group)};
  }

  void pack_means(const KeyHead& head, std::int64_t unit, const ThreadScratch& thread) {
    int n = 0;
    for (; n < kUnitKeys; ++n) {
      const MeanKeys keys = mean_keys(head.b, unit * kUnitKeys + n);
      if (keys.count == 0) break;
      kernels_.average(k_rows(head, keys.begin), keys.count, a_.D, thread.mean_k + n * a_.D);
      kernels_.average(v_rows(head, keys.begin), keys.count, a_.D, thread.mean_v + n * a_.D);
    }
    if (n == 0) return;
    kernels_.pack_k({thread.mean_k, a_.D, Format::f32}, n, a_.D, head.mean_k + unit * unit_bytes_);
    kernels_.pack_v({thread.mean_v, a_.D, Format::f32}, n, a_.D, head.mean_v + unit * unit_bytes_);
  }

  bool same_lists(std::int64_t row, std::int64_t other) const {
    const TilePlan& plan = *a_.plan;
    const auto candidates = [&](std::int64_t r) { return g_.candidates(g_.batch(r), g_.query_tile(r)); };
    if (!(candidates(row) == candidates(other))) return false;
    return plan.is_identity() || (std::ranges::equal(plan.tiles(Tier::refine, row), plan.tiles(Tier::refine, other)) &&
                                  std::ranges::equal(plan.tiles(Tier::skim, row), plan.tiles(Tier::skim, other)) &&
                                  std::ranges::equal(plan.excluded(row), plan.excluded(other)));
  }

  // All work items of the group, costliest first, so that no thread is left with a long one at the end.
  std::int64_t list_items(std::int64_t heads) {
    const std::int64_t ratio = a_.H / a_.Hk;
    std::int64_t limit = kTaskRows;  // smaller if that leaves too few items to share out evenly
    while (limit > kSmallTaskRows && heads * ratio * a_.Sq < limit * kItemsPerThread * num_threads()) limit /= 2;
    std::int64_t n = 0;
    for (std::int64_t i = 0; i < heads; ++i) {
      for (std::int64_t h = heads_[i].hk * ratio; h < (heads_[i].hk + 1) * ratio; ++h) n += list_items(i, h, limit, items_ + n);
    }
    std::sort(items_, items_ + n, [](const Item& x, const Item& y) {
      if (x.cost != y.cost) return x.cost > y.cost;
      return x.row != y.row ? x.row < y.row : x.position < y.position;
    });
    return n;
  }

  // Those of one query head.
  std::int64_t list_items(std::int64_t head, std::int64_t h, std::int64_t limit, Item* items) const {
    std::int64_t n = 0;
    for (std::int64_t t = 0; t < g_.Gq();) {
      const std::int64_t row = g_.row(heads_[head].b, h, t);
      std::int64_t tiles = 1;
      // Joined tiles keep their boundaries between blocks, so that skip votes do not change: only the last one may be short.
      while (g_.tile_q % kernels_.block == 0 && (tiles + 1) * g_.tile_q <= limit && t + tiles < g_.Gq() &&
             g_.tile_queries(t + tiles - 1) == g_.tile_q && same_lists(row, row + tiles))
        ++tiles;
      const auto listed = static_cast<std::int64_t>(a_.plan->tiles(Tier::refine, row).size() + a_.plan->tiles(Tier::skim, row).size());
      const std::int64_t end = g_.query_begin(t + tiles);
      for (std::int64_t position = g_.query_begin(t); position < end; position += limit) {
        const std::int64_t queries = std::min(limit, end - position);
        items[n++] = {listed * queries, row, position, static_cast<std::int32_t>(queries), static_cast<std::int32_t>(head)};
      }
      t += tiles;
    }
    return n;
  }

  // The virtual keys of a plan row: which count, and how much.
  void list_means(RowTask& task, const ThreadScratch& thread, std::int64_t b, std::int64_t row) const {
    float* bias = thread.mean_bias_log2;
    const TileRange slots = g_.key_layout ? weigh_candidates(b, row, bias) : weigh_all(b, bias);
    const std::int64_t groups = g_.tile_k / g_.mean_group;
    for (const std::span<const std::int32_t> list :
         {a_.plan->tiles(Tier::refine, row), a_.plan->tiles(Tier::skim, row), a_.plan->excluded(row)}) {
      for (const std::int32_t tile : list) {
        const std::int64_t begin = g_.key_layout ? mean_slots_[tile] : tile * groups;
        const std::int64_t end = g_.key_layout ? mean_slots_[tile] + ceil_div(g_.tile_keys(b, tile), g_.mean_group) : begin + groups;
        for (std::int64_t c = begin; c < std::min(end, slots.end); ++c) bias[c] = -kInfinity;
      }
    }
    for (std::int64_t unit = slots.begin / kUnitKeys; unit * kUnitKeys < slots.end; ++unit) {
      const float* begin = bias + unit * kUnitKeys;
      if (std::any_of(begin, begin + kUnitKeys, [](float x) { return x > -kInfinity; })) {
        thread.mean_list[task.mean_count++] = static_cast<std::int32_t>(unit);
      }
    }
    task.mean_bias_log2 = bias;
    task.mean_list = thread.mean_list;
  }

  // Sets the weights of all slots that a row may use, and of the rest of their units; returns those slots.
  TileRange weigh_all(std::int64_t b, float* bias) const {
    const std::int64_t n = virtual_keys(b);
    std::fill_n(bias, n, std::log2(static_cast<float>(g_.mean_group)));
    std::fill(bias + n, bias + mean_units_ * kUnitKeys, -kInfinity);
    if (n > 0) bias[n - 1] = std::log2(static_cast<float>(g_.keys(b) - (n - 1) * g_.mean_group));
    return {0, n};
  }
  TileRange weigh_candidates(std::int64_t b, std::int64_t row, float* bias) const {
    const TileRange tiles = g_.candidates(b, g_.query_tile(row));
    if (tiles.size() == 0) return {};
    const std::int64_t begin = mean_slots_[tiles.begin];
    const std::int64_t end = mean_slots_[tiles.end - 1] + ceil_div(g_.tile_keys(b, tiles.end - 1), g_.mean_group);
    std::copy(mean_log2_ + begin, mean_log2_ + ceil_div(end, kUnitKeys) * kUnitKeys, bias + begin);
    return {begin, end};
  }

  void compute(const Item& item, const ThreadScratch& thread) {
    const KeyHead& head = heads_[item.head];
    const std::int64_t h = item.row / g_.Gq() % a_.H;
    const std::int32_t* tokens = g_.query_tokens();
    RowTask task;
    task.q = rows(a_.q, a_.q_strides, head.b, item.position, h, tokens);
    task.rows = item.queries;
    task.D = a_.D;
    task.negate_q = a_.scale < 0.0F;
    // Never 0, which would turn the -inf of a padding key into a NaN.
    task.scale_log2 = std::max(std::fabs(a_.scale) * 1.44269504F, std::numeric_limits<float>::min());
    task.units = {head.k, head.v};
    task.unit_finite = head.finite;
    task.tile_k = g_.tile_k;
    task.keys = g_.keys(head.b);
    task.tile_begin = g_.key_layout ? g_.key_layout->parts().tile_begin.data() : nullptr;
    int i = 0;
    for (const Tier tier : {Tier::refine, Tier::skim}) {
      const auto tiles = a_.plan->tiles(tier, item.row);
      task.lists[i++] = {tiles.data(), static_cast<std::int64_t>(tiles.size())};
    }
    task.means = {head.mean_k, head.mean_v};
    if (means_) list_means(task, thread, head.b, item.row);
    task.test_skip = a_.skip_threshold_log2 > -kInfinity;
    task.skip_threshold_log2 = a_.skip_threshold_log2;
    if (a_.skip_gaps_log2 != nullptr) {
      task.gaps_per_block = units_;
      const std::int64_t blocks = ceil_div(a_.Sq, kernels_.block);
      task.skip_gaps_log2 = a_.skip_gaps_log2 + ((head.b * a_.H + h) * blocks + item.position / kernels_.block) * units_;
    }
    task.scratch = thread.kernel;
    const std::int64_t first = tokens == nullptr ? item.position : 0;
    const std::int64_t out = head.b * a_.out_strides.batch + first * a_.out_strides.token + h * a_.out_strides.head;
    task.out = static_cast<std::byte*>(a_.out) + out * static_cast<std::int64_t>(dtype_bytes(a_.out_dtype));
    task.out_stride = a_.out_strides.token;
    task.out_list = task.q.list;
    task.out_format = format_of(a_.out_dtype);
    task.state = a_.lse != nullptr || a_.inv_l != nullptr ? thread.state : nullptr;
    kernels_.attend(task);
    if (task.state != nullptr) store_stats(task, head.b, h, item.position);
    if (task.test_skip) {
      tested_ += task.tested;
      skipped_ += task.skipped;
    }
  }

  void store_stats(const RowTask& task, std::int64_t b, std::int64_t h, std::int64_t position) const {
    constexpr double kLn2 = 0.69314718055994531;
    const auto at = [&](const RowStrides& st, int row) {
      return b * st.batch + h * st.head + token_at(g_.query_tokens(), position + row) * st.token;
    };
    for (int row = 0; row < task.rows; ++row) {
      const RowState& s = task.state[row];
      const bool empty = s.m == -kInfinity;
      if (a_.lse != nullptr)
        a_.lse[at(a_.lse_strides, row)] = empty ? -kInfinity : static_cast<float>((s.m + std::log2(double{s.l})) * kLn2);
      if (a_.inv_l == nullptr) continue;
      const float inv_l = empty ? 0.0F : static_cast<float>(std::exp2(double{s.top} - s.m) / s.l);
      a_.inv_l[at(a_.inv_l_strides, row)] = inv_l > 1.0F ? 1.0F : inv_l;  // top is rounded; a NaN stays
    }
  }

  const CpuKernels& kernels_;
  const AttendArgs& a_;
  const PlanGeometry& g_;
  bool means_;
  std::int64_t units_per_tile_;
  std::int64_t units_;
  std::int64_t mean_units_;
  std::int64_t unit_bytes_;
  std::int64_t items_per_row_;
  Workspace& ws_;
  KeyHead* heads_ = nullptr;
  Item* items_ = nullptr;
  ThreadScratch* threads_ = nullptr;
  std::int32_t* mean_slots_ = nullptr;  // [Gk] each tile's first virtual key; this and the next two with a layout only
  MeanKeys* mean_keys_ = nullptr;       // [mean_units * kUnitKeys]
  float* mean_log2_ = nullptr;          // the same of log2 of their count; -inf in a gap
  std::atomic<std::int64_t> tested_{0};
  std::atomic<std::int64_t> skipped_{0};
};

}  // namespace

SkipCounts attend_cpu(const CpuKernels& kernels, const AttendArgs& args, Workspace& ws) {
  Call call(kernels, args, ws);
  return call.run();
}

}  // namespace winnow
