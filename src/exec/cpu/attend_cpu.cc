#include "exec/cpu/attend_cpu.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <span>

#include "core/threads.h"
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
  std::int64_t row;    // the first
  std::int64_t token;  // the first
  std::int32_t queries;
  std::int32_t head;  // index into the group
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
        mean_units_(means_ ? ceil_div(ceil_div(a.Sk, g_.mean_group), kUnitKeys) : 0),
        unit_bytes_(kernels.unit_bytes(a.D)),
        items_per_row_(ceil_div(g_.tile_q, kSmallTaskRows)),
        ws_(ws) {}

  SkipCounts run() {
    const std::int64_t heads = a_.B * a_.Hk;
    const std::int64_t head_bytes = std::max<std::int64_t>(2 * (units_ + mean_units_) * unit_bytes_, 1);
    const std::int64_t head_items = a_.H / a_.Hk * g_.Gq() * items_per_row_;
    const int threads = num_threads();
    const std::int64_t group = std::min(heads, std::max(kGroupBytes / head_bytes, ceil_div(std::int64_t{8} * threads, head_items)));
    allocate(group, head_items, threads);
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

  Rows rows(const void* data, const Strides& strides, std::int64_t b, std::int64_t token, std::int64_t head) const {
    const std::int64_t offset = b * strides.batch + token * strides.token + head * strides.head;
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(a_.dtype));
    return {static_cast<const std::byte*>(data) + offset * bytes, strides.token, format_of(a_.dtype)};
  }

  void pack(const KeyHead& head, std::int64_t unit) {
    const std::int64_t tile = unit / units_per_tile_;
    const std::int64_t offset = unit % units_per_tile_ * kUnitKeys;
    const std::int64_t begin = tile * g_.tile_k + offset;
    const std::int64_t end = std::min({begin + kUnitKeys, (tile + 1) * g_.tile_k, g_.keys(head.b)});
    if (begin >= end) return;  // no list names it
    const auto n = static_cast<int>(end - begin);
    head.finite[unit] =
        static_cast<unsigned char>(kernels_.pack_k(rows(a_.k, a_.k_strides, head.b, begin, head.hk), n, a_.D, head.k + unit * unit_bytes_));
    kernels_.pack_v(rows(a_.v, a_.v_strides, head.b, begin, head.hk), n, a_.D, head.v + unit * unit_bytes_);
  }

  std::int64_t virtual_keys(std::int64_t b) const { return ceil_div(g_.keys(b), g_.mean_group); }

  void pack_means(const KeyHead& head, std::int64_t unit, const ThreadScratch& thread) {
    const std::int64_t first = unit * kUnitKeys;
    const std::int64_t n = std::min<std::int64_t>(kUnitKeys, virtual_keys(head.b) - first);
    if (n <= 0) return;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t begin = (first + i) * g_.mean_group;
      const std::int64_t keys = std::min<std::int64_t>(g_.mean_group, g_.keys(head.b) - begin);
      kernels_.average(rows(a_.k, a_.k_strides, head.b, begin, head.hk), keys, a_.D, thread.mean_k + i * a_.D);
      kernels_.average(rows(a_.v, a_.v_strides, head.b, begin, head.hk), keys, a_.D, thread.mean_v + i * a_.D);
    }
    kernels_.pack_k({thread.mean_k, a_.D, Format::f32}, static_cast<int>(n), a_.D, head.mean_k + unit * unit_bytes_);
    kernels_.pack_v({thread.mean_v, a_.D, Format::f32}, static_cast<int>(n), a_.D, head.mean_v + unit * unit_bytes_);
  }

  bool same_lists(std::int64_t row, std::int64_t other) const {
    const TilePlan& plan = *a_.plan;
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
      return x.row != y.row ? x.row < y.row : x.token < y.token;
    });
    return n;
  }

  // Those of one query head.
  std::int64_t list_items(std::int64_t head, std::int64_t h, std::int64_t limit, Item* items) const {
    std::int64_t n = 0;
    for (std::int64_t t = 0; t < g_.Gq();) {
      const std::int64_t row = g_.row(heads_[head].b, h, t);
      std::int64_t tiles = 1;
      // Joined tiles keep their boundaries between blocks, so that skip votes do not change.
      while (g_.tile_q % kernels_.block == 0 && (tiles + 1) * g_.tile_q <= limit && t + tiles < g_.Gq() && same_lists(row, row + tiles))
        ++tiles;
      const auto listed = static_cast<std::int64_t>(a_.plan->tiles(Tier::refine, row).size() + a_.plan->tiles(Tier::skim, row).size());
      const std::int64_t end = std::min((t + tiles) * g_.tile_q, a_.Sq);
      for (std::int64_t token = t * g_.tile_q; token < end; token += limit) {
        const std::int64_t queries = std::min(limit, end - token);
        items[n++] = {listed * queries, row, token, static_cast<std::int32_t>(queries), static_cast<std::int32_t>(head)};
      }
      t += tiles;
    }
    return n;
  }

  // The virtual keys of a plan row: which count, and how much.
  void list_means(RowTask& task, const ThreadScratch& thread, std::int64_t b, std::int64_t row) const {
    const std::int64_t n = virtual_keys(b);
    float* bias = thread.mean_bias_log2;
    std::fill_n(bias, n, std::log2(static_cast<float>(g_.mean_group)));
    std::fill(bias + n, bias + mean_units_ * kUnitKeys, -kInfinity);
    if (n > 0) bias[n - 1] = std::log2(static_cast<float>(g_.keys(b) - (n - 1) * g_.mean_group));
    const std::int64_t groups = g_.tile_k / g_.mean_group;
    for (const std::span<const std::int32_t> list :
         {a_.plan->tiles(Tier::refine, row), a_.plan->tiles(Tier::skim, row), a_.plan->excluded(row)}) {
      for (const std::int32_t tile : list) {
        for (std::int64_t c = tile * groups; c < std::min((tile + 1) * groups, n); ++c) bias[c] = -kInfinity;
      }
    }
    for (std::int64_t unit = 0; unit < mean_units_; ++unit) {
      const float* begin = bias + unit * kUnitKeys;
      if (std::any_of(begin, begin + kUnitKeys, [](float x) { return x > -kInfinity; })) {
        thread.mean_list[task.mean_count++] = static_cast<std::int32_t>(unit);
      }
    }
    task.mean_bias_log2 = bias;
    task.mean_list = thread.mean_list;
  }

  void compute(const Item& item, const ThreadScratch& thread) {
    const KeyHead& head = heads_[item.head];
    const std::int64_t h = item.row / g_.Gq() % a_.H;
    const std::int64_t token = item.token;
    RowTask task;
    task.q = rows(a_.q, a_.q_strides, head.b, token, h);
    task.rows = item.queries;
    task.D = a_.D;
    task.negate_q = a_.scale < 0.0F;
    // Never 0, which would turn the -inf of a padding key into a NaN.
    task.scale_log2 = std::max(std::fabs(a_.scale) * 1.44269504F, std::numeric_limits<float>::min());
    task.units = {head.k, head.v};
    task.unit_finite = head.finite;
    task.tile_k = g_.tile_k;
    task.keys = g_.keys(head.b);
    int i = 0;
    for (const Tier tier : {Tier::refine, Tier::skim}) {
      const auto tiles = a_.plan->tiles(tier, item.row);
      task.lists[i++] = {tiles.data(), static_cast<std::int64_t>(tiles.size())};
    }
    task.means = {head.mean_k, head.mean_v};
    if (means_) list_means(task, thread, head.b, item.row);
    task.test_skip = a_.skip_threshold_log2 > -kInfinity;
    task.skip_threshold_log2 = a_.skip_threshold_log2;
    task.scratch = thread.kernel;
    const std::int64_t out = head.b * a_.out_strides.batch + token * a_.out_strides.token + h * a_.out_strides.head;
    task.out = static_cast<std::byte*>(a_.out) + out * static_cast<std::int64_t>(dtype_bytes(a_.out_dtype));
    task.out_stride = a_.out_strides.token;
    task.out_format = format_of(a_.out_dtype);
    task.state = a_.lse != nullptr || a_.inv_l != nullptr ? thread.state : nullptr;
    kernels_.attend(task);
    if (task.state != nullptr) store_stats(task, head.b, h, token);
    if (task.test_skip) {
      tested_ += task.tested;
      skipped_ += task.skipped;
    }
  }

  void store_stats(const RowTask& task, std::int64_t b, std::int64_t h, std::int64_t token) const {
    constexpr double kLn2 = 0.69314718055994531;
    const auto at = [&](const RowStrides& st, int row) { return b * st.batch + h * st.head + (token + row) * st.token; };
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
  std::atomic<std::int64_t> tested_{0};
  std::atomic<std::int64_t> skipped_{0};
};

}  // namespace

SkipCounts attend_cpu(const CpuKernels& kernels, const AttendArgs& args, Workspace& ws) {
  Call call(kernels, args, ws);
  return call.run();
}

}  // namespace winnow
