// fp64, no SIMD, no online softmax: all logits of a few rows, then their softmax.
#include "exec/reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <span>

#include "core/numeric.h"
#include "core/threads.h"
#include "exec/tokens.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

double load(const void* p, DType dtype, std::int64_t i) {
  if (dtype == DType::f32) return static_cast<const float*>(p)[i];
  if (dtype == DType::bf16) return to_f32(static_cast<const bf16*>(p)[i]);
  return to_f32(static_cast<const f16*>(p)[i]);
}

void store(void* p, DType dtype, std::int64_t i, double x) {
  const auto f = static_cast<float>(x);
  if (dtype == DType::f32) static_cast<float*>(p)[i] = f;
  if (dtype == DType::bf16) static_cast<bf16*>(p)[i] = to_bf16(f);
  if (dtype == DType::f16) static_cast<f16*>(p)[i] = to_f16(f);
}

// The keys at positions [begin, end), or their mean if they are one virtual key.
struct Keys {
  std::int64_t begin;
  std::int64_t end;
};

struct Scratch {
  double* x;             // [granule rows, Sk + virtual keys] logits of the keys visited
  double* m;             // [granule rows] running maximum
  double* mean;          // [D]
  double* o;             // [D]
  Keys* visited;         // [Sk + virtual keys]
  std::int32_t* merged;  // [key tiles] a row's tiles of both tiers
};

// One granule of rows of one plan row.
class Granule {
 public:
  Granule(const AttendArgs& a, const Scratch& s, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows, std::int64_t width,
          float* gaps)
      : a_(a), s_(s), b_(b), h_(h), hk_(h / (a.H / a.Hk)), first_(first), rows_(rows), width_(width), gaps_(gaps) {
    std::fill_n(s_.m, rows, -kInf);
  }

  // Visits all tiles that the row lists.
  void visit_lists(std::int64_t row, const SkipGranule& granule, SkipCounts& counts) {
    const std::span<const std::int32_t> refine = a_.plan->tiles(Tier::refine, row);
    const std::span<const std::int32_t> skim = a_.plan->tiles(Tier::skim, row);
    if (granule.order == SkipGranule::Order::tiers) {
      visit(refine, granule.keys, counts);
      visit(skim, granule.keys, counts);
      return;
    }
    std::int32_t* merged = s_.merged;
    const auto n = static_cast<std::size_t>(std::ranges::merge(refine, skim, merged).out - merged);
    std::size_t last = 0;  // tiles of the last unit, if it comes first
    if (granule.order == SkipGranule::Order::last_first && n > 0) {
      const auto group = static_cast<std::size_t>(std::max(1, granule.keys / a_.plan->geometry().tile_k));
      last = (n - 1) % group + 1;
      visit({merged + n - last, last}, granule.keys, counts);
    }
    visit({merged, n - last}, granule.keys, counts);
  }

  void visit_means(std::int64_t row) {
    const PlanGeometry& g = a_.plan->geometry();
    const auto has = [](std::span<const std::int32_t> list, std::int64_t tile) {
      return std::binary_search(list.begin(), list.end(), static_cast<std::int32_t>(tile));
    };
    const TileRange candidates = g.candidates(b_, g.query_tile(row));
    for (std::int64_t tile = candidates.begin; tile < candidates.end; ++tile) {
      if (has(a_.plan->tiles(Tier::refine, row), tile) || has(a_.plan->tiles(Tier::skim, row), tile)) continue;
      if (has(a_.plan->excluded(row), tile)) continue;
      const std::int64_t end = g.key_begin(b_, tile + 1);
      for (std::int64_t begin = g.key_begin(b_, tile); begin < end; begin += g.mean_group) {
        append({begin, std::min(begin + g.mean_group, end)});
      }
    }
    for (std::int64_t r = 0; r < rows_; ++r) s_.m[r] = maximum(r, 0);
  }

  void finish() {
    for (std::int64_t r = 0; r < rows_; ++r) {
      double l = 0.0;
      for (std::int64_t i = 0; i < count_; ++i) l += std::exp(x(r, i) - s_.m[r]);
      std::fill_n(s_.o, a_.D, 0.0);
      for (std::int64_t i = 0; i < count_; ++i) {
        const double p = std::exp(x(r, i) - s_.m[r]) / l;
        average(a_.v, a_.v_strides, s_.visited[i]);
        for (int d = 0; d < a_.D; ++d) s_.o[d] += p * s_.mean[d];
      }
      const std::int64_t token = query_token(r);
      const std::int64_t o = b_ * a_.out_strides.batch + token * a_.out_strides.token + h_ * a_.out_strides.head;
      for (int d = 0; d < a_.D; ++d) store(a_.out, a_.out_dtype, o + d, s_.o[d]);
      const auto at = [&](const RowStrides& st) { return b_ * st.batch + h_ * st.head + token * st.token; };
      if (a_.lse != nullptr) a_.lse[at(a_.lse_strides)] = static_cast<float>(count_ == 0 ? -kInf : s_.m[r] + std::log(l));
      if (a_.inv_l != nullptr) a_.inv_l[at(a_.inv_l_strides)] = static_cast<float>(count_ == 0 ? 0.0 : 1.0 / l);
    }
  }

 private:
  // Visits the tiles of one list in units of granule.keys.
  void visit(std::span<const std::int32_t> tiles, int granule_keys, SkipCounts& counts) {
    const PlanGeometry& g = a_.plan->geometry();
    const std::size_t group = static_cast<std::size_t>(std::max(1, granule_keys / g.tile_k));
    const std::int64_t part = group > 1 ? g.tile_k : std::min(g.tile_k, granule_keys);
    for (std::size_t t = 0; t < tiles.size(); t += group) {
      for (std::int64_t offset = 0; offset < g.tile_k; offset += part) {
        const std::int64_t before = count_;
        for (std::size_t i = t; i < std::min(tiles.size(), t + group); ++i) {
          const std::int64_t begin = g.key_begin(b_, tiles[i]) + offset;
          const std::int64_t end = std::min(begin + part, g.key_begin(b_, tiles[i] + 1));
          for (std::int64_t j = begin; j < end; ++j) append({j, j + 1});
        }
        if (count_ > before) vote(before, counts, (std::int64_t{tiles[t]} * g.tile_k + offset) / granule_keys);
      }
    }
  }

  std::int64_t query_token(std::int64_t r) const { return token_at(a_.plan->geometry().query_tokens(), first_ + r); }

  double& x(std::int64_t r, std::int64_t i) { return s_.x[r * width_ + i]; }

  // A NaN stays.
  double maximum(std::int64_t r, std::int64_t begin) {
    double m = -kInf;
    for (std::int64_t i = begin; i < count_; ++i) m = x(r, i) > m || std::isnan(x(r, i)) ? x(r, i) : m;
    return m;
  }

  // mean = the average of k or v over `keys`
  void average(const void* p, const Strides& strides, Keys keys) {
    std::fill_n(s_.mean, a_.D, 0.0);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const std::int64_t token = token_at(a_.plan->geometry().key_tokens(), j);
      const std::int64_t base = b_ * strides.batch + token * strides.token + hk_ * strides.head;
      for (int d = 0; d < a_.D; ++d) s_.mean[d] += load(p, a_.dtype, base + d);
    }
    for (int d = 0; d < a_.D; ++d) s_.mean[d] /= static_cast<double>(keys.end - keys.begin);
  }

  void append(Keys keys) {
    average(a_.k, a_.k_strides, keys);
    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int64_t base = b_ * a_.q_strides.batch + query_token(r) * a_.q_strides.token + h_ * a_.q_strides.head;
      double dot = 0.0;
      for (int d = 0; d < a_.D; ++d) dot += load(a_.q, a_.dtype, base + d) * s_.mean[d];
      x(r, count_) = a_.scale * dot + std::log(static_cast<double>(keys.end - keys.begin));
    }
    s_.visited[count_++] = keys;
  }

  // Keeps or takes back what was appended since `before`: the granule's unit of keys number `unit`.
  void vote(std::int64_t before, SkipCounts& counts, std::int64_t unit) {
    constexpr double kLog2E = 1.4426950408889634;
    double gap = before > 0 ? -kInf : kInf;
    for (std::int64_t r = 0; r < rows_ && gap < kInf; ++r) {
      const double row = (maximum(r, before) - s_.m[r]) * kLog2E;
      gap = std::isnan(row) ? kInf : std::max(gap, row);
    }
    if (gaps_ != nullptr) gaps_[unit] = static_cast<float>(gap);
    const bool skip = gap < a_.skip_threshold_log2;
    if (a_.skip_threshold_log2 > -kInf) ++counts.tested;
    if (skip) {
      ++counts.skipped;
      count_ = before;
      return;
    }
    for (std::int64_t r = 0; r < rows_; ++r) s_.m[r] = maximum(r, 0);
  }

  const AttendArgs& a_;
  const Scratch& s_;
  std::int64_t b_, h_, hk_, first_, rows_, width_;
  float* gaps_;             // [units of keys] of this granule, or null
  std::int64_t count_ = 0;  // keys visited
};

}  // namespace

SkipCounts attend_reference(const AttendArgs& a, SkipGranule granule, Workspace& ws) {
  const PlanGeometry& g = a.plan->geometry();
  const bool means = a.plan->skipped() == Skipped::mean;
  const std::int64_t width = a.Sk + (means ? g.Gk() * (g.tile_k / g.mean_group) : 0);
  const std::int64_t most_rows = std::min<std::int64_t>({granule.rows, g.tile_q, a.Sq});
  const Workspace::Scope scope(ws);
  const int workers = num_threads();
  Scratch* scratch = ws.allocate<Scratch>(static_cast<std::size_t>(workers));
  for (int w = 0; w < workers; ++w) {
    scratch[w] = {ws.allocate<double>(static_cast<std::size_t>(most_rows * width)),
                  ws.allocate<double>(static_cast<std::size_t>(most_rows)),
                  ws.allocate<double>(static_cast<std::size_t>(a.D)),
                  ws.allocate<double>(static_cast<std::size_t>(a.D)),
                  ws.allocate<Keys>(static_cast<std::size_t>(width)),
                  ws.allocate<std::int32_t>(static_cast<std::size_t>(g.Gk()))};
  }
  clear_missing_queries(a);
  std::atomic<std::int64_t> tested{0};
  std::atomic<std::int64_t> skipped{0};
  parallel_for(g.rows(), [&](std::int64_t row, int worker) {
    const std::int64_t b = row / (g.H * g.Gq());
    const std::int64_t h = row / g.Gq() % g.H;
    const std::int64_t begin = g.query_begin(g.query_tile(row));
    const std::int64_t end = g.query_begin(g.query_tile(row) + 1);
    SkipCounts counts;
    for (std::int64_t first = begin; first < end; first += granule.rows) {
      float* gaps = a.skip_gaps_log2;
      if (gaps != nullptr) gaps += ((b * a.H + h) * ceil_div(a.Sq, granule.rows) + first / granule.rows) * ceil_div(a.Sk, granule.keys);
      Granule rows(a, scratch[worker], b, h, first, std::min<std::int64_t>(granule.rows, end - first), width, gaps);
      rows.visit_lists(row, granule, counts);
      if (means) rows.visit_means(row);
      rows.finish();
    }
    tested += counts.tested;
    skipped += counts.skipped;
  });
  return {tested.load(), skipped.load()};
}

}  // namespace winnow
