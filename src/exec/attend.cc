// attend(): every check, the choice of an executor, nothing else.
#include "winnow/attend.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "core/overlap.h"
#include "core/text.h"
#include "exec/attend_args.h"
#include "exec/cuda/executors.h"
#include "exec/registry.h"
#include "winnow/cuda.h"
#include "winnow/error.h"
#include "winnow/workspace.h"

namespace winnow {

namespace {

std::string text(std::int64_t x) { return std::to_string(x); }

[[noreturn]] void refuse(const char* argument, const std::string& expected, const std::string& got) {
  throw Error("attend", std::string(argument) + ": expected " + expected + ", got " + got);
}

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

// What every tensor has to satisfy once its shape is right.
void check_memory(const char* name, const TensorView& t, const Place& place) {
  const Place found{t.device, t.device == Device::cpu ? 0 : t.device_index};
  if (found != place) refuse(name, "memory of " + place.text() + ", like the workspace", "memory of " + found.text());
  if (t.numel() == 0) return;
  if (t.data == nullptr) refuse(name, t.describe() + " in memory", "a null pointer");
  if (!is_addressable(t)) refuse(name, "strides that keep elements within 2^62 bytes", "larger ones");
  if (reinterpret_cast<std::uintptr_t>(t.data) % dtype_bytes(t.dtype) != 0) {
    refuse(name, "data aligned to its " + text(static_cast<std::int64_t>(dtype_bytes(t.dtype))) + "-byte elements", "an odd address");
  }
}

void check_contiguous_heads(const char* name, const TensorView& t) {
  if (t.size(3) > 1 && t.stride(3) != 1) refuse(name, "contiguous head dim (stride 1)", "stride " + text(t.stride(3)));
}

using Named = std::pair<const char*, const TensorView*>;

// What is written must not share memory with itself, nor with anything else that the call reads or writes.
void check_distinct(const Named& written, std::initializer_list<Named> others) {
  const auto& [name, t] = written;
  if (overlaps_itself(*t)) refuse(name, "strides that give every element memory of its own", "elements that overlap");
  for (const auto& [other_name, other] : others) {
    if (overlap(*t, *other)) refuse(name, "memory of its own", std::string("an overlap with ") + other_name);
  }
}

void check_inputs(const PlanGeometry& g, const TensorView& q, const TensorView& k, const TensorView& v, const Place& place) {
  if (q.rank != 4 || !is_float(q.dtype)) refuse("q", "[B,Sq,H,D] f32, f16 or bf16", q.describe());
  const std::int64_t H = q.size(2);
  const std::int64_t D = q.size(3);
  if (D < 1) refuse("q", "a head dim of at least 1", q.describe());
  const bool heads_fit = k.rank == 4 && (k.size(2) > 0 ? H % k.size(2) == 0 : H == 0);
  if (k.rank != 4 || k.dtype != q.dtype || k.size(0) != q.size(0) || k.size(3) != D || !heads_fit) {
    const std::string Hk = heads_fit ? text(k.size(2)) : std::string("a divisor of ").append(text(H));
    const std::string Sk = text(k.rank == 4 ? k.size(1) : g.Sk);
    refuse("k", std::string("[").append(text(q.size(0)) + "," + Sk + "," + Hk + "," + text(D) + "] " + dtype_name(q.dtype)), k.describe());
  }
  if (v.rank != 4 || v.shape != k.shape || v.dtype != k.dtype) refuse("v", k.describe(), v.describe());
  if (g.B != q.size(0) || g.H != H || g.Sq != q.size(1) || g.Sk != k.size(1)) {
    const auto sizes = [](std::int64_t B, std::int64_t heads, std::int64_t Sq, std::int64_t Sk) {
      return std::string("B=").append(text(B) + " H=" + text(heads) + " Sq=" + text(Sq) + " Sk=" + text(Sk));
    };
    refuse("plan", sizes(q.size(0), H, q.size(1), k.size(1)), sizes(g.B, g.H, g.Sq, g.Sk));
  }
  const Named all[] = {{"q", &q}, {"k", &k}, {"v", &v}};
  for (const auto& [name, t] : all) {
    check_memory(name, *t, place);
    check_contiguous_heads(name, *t);
  }
}

void check_outputs(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out, const RowStats& stats,
                   const Place& place) {
  if (out.rank != 4 || out.shape != q.shape) refuse("out", q.describe() + " or another float dtype", out.describe());
  if (!is_float(out.dtype)) refuse("out", "f32, f16 or bf16", out.describe());
  check_memory("out", out, place);
  check_contiguous_heads("out", out);
  const TensorView rows(static_cast<void*>(nullptr), DType::f32, {q.size(0), q.size(2), q.size(1)});
  const Named lse = {"stats.lse", &stats.lse};
  const Named inv_l = {"stats.inv_l", &stats.inv_l};
  for (const auto& [name, t] : {lse, inv_l}) {
    if (t->data == nullptr && t->rank == 0) continue;  // not asked for
    if (t->rank != 3 || t->shape != rows.shape || t->dtype != DType::f32) refuse(name, rows.describe(), t->describe());
    check_memory(name, *t, place);
  }
  const Named o = {"out", &out};
  check_distinct(o, {{"q", &q}, {"k", &k}, {"v", &v}, lse, inv_l});
  check_distinct(lse, {{"q", &q}, {"k", &k}, {"v", &v}, inv_l});
  check_distinct(inv_l, {{"q", &q}, {"k", &k}, {"v", &v}});
}

void check_options(const AttendOptions& options, const Place& place) {
  if (!std::isnan(options.scale) && !std::isfinite(options.scale)) {
    refuse("scale", "a finite number, or NaN for 1/sqrt(D)", short_number(options.scale));
  }
  if (!(options.skip_threshold_log2 <= 0.0F)) {
    refuse("skip_threshold_log2", "a number <= 0, or -inf for off", short_number(options.skip_threshold_log2));
  }
  const TensorView& counts = options.skip_counts;
  if (place.device == Device::cpu) {
    if (options.stream != nullptr) refuse("stream", "null for memory of the cpu", "a stream");
    if (counts.data != nullptr) refuse("skip_counts", "nothing for memory of the cpu: the result has the counts", counts.describe());
    return;
  }
  if (options.skip_gaps_log2.data != nullptr) refuse("skip_gaps_log2", "nothing for memory of a GPU", options.skip_gaps_log2.describe());
  if (counts.data != nullptr) {
    if (counts.rank != 1 || counts.size(0) != 2 || counts.dtype != DType::i64 || counts.stride(0) != 1) {
      refuse("skip_counts", "contiguous [2] i64", counts.describe());
    }
    check_memory("skip_counts", counts, place);
  }
}

// On the CPU.
void check_skip_gaps(const TilePlan& plan, const TensorView& gaps, const Executor& executor) {
  if (gaps.data == nullptr && gaps.rank == 0) return;  // not asked for
  const SkipGranule& unit = executor.granule;
  const PlanGeometry& g = plan.geometry();
  if (unit.rows == 0) refuse("skip_gaps_log2", "an executor with skip-softmax", executor.name);
  if (!plan.is_identity() || g.query_layout || g.key_layout || g.tile_q % unit.rows != 0 || g.tile_k % unit.keys != 0) {
    refuse(
        "skip_gaps_log2",
        "a dense plan without layouts, with tiles that are multiples of " + text(unit.rows) + " queries and " + text(unit.keys) + " keys",
        plan.describe());
  }
  const TensorView want(static_cast<void*>(nullptr), DType::f32,
                        {g.B, g.H, (g.Sq + unit.rows - 1) / unit.rows, (g.Sk + unit.keys - 1) / unit.keys});
  if (gaps.rank != 4 || gaps.shape != want.shape || gaps.dtype != DType::f32 || !gaps.is_contiguous()) {
    refuse("skip_gaps_log2", want.describe() + " for " + executor.name, gaps.describe());
  }
  check_memory("skip_gaps_log2", gaps, {});
  std::fill_n(gaps.as<float>(), gaps.numel(), std::numeric_limits<float>::infinity());  // of keys that are not valid
}

Strides token_strides(const TensorView& t) { return {t.stride(0), t.stride(1), t.stride(2)}; }
RowStrides row_strides(const TensorView& t) { return {t.stride(0), t.stride(1), t.stride(2)}; }

AttendArgs to_args(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out, const AttendOptions& options) {
  AttendArgs a;
  a.B = q.size(0);
  a.H = q.size(2);
  a.Hk = k.size(2);
  a.Sq = q.size(1);
  a.Sk = k.size(1);
  a.D = static_cast<int>(q.size(3));
  a.dtype = q.dtype;
  a.out_dtype = out.dtype;
  a.q = q.data;
  a.k = k.data;
  a.v = v.data;
  a.out = out.data;
  a.q_strides = token_strides(q);
  a.k_strides = token_strides(k);
  a.v_strides = token_strides(v);
  a.out_strides = token_strides(out);
  a.lse = options.stats.lse.as<float>();
  a.inv_l = options.stats.inv_l.as<float>();
  a.lse_strides = row_strides(options.stats.lse);
  a.inv_l_strides = row_strides(options.stats.inv_l);
  a.scale = std::isnan(options.scale) ? 1.0F / std::sqrt(static_cast<float>(a.D)) : options.scale;
  a.skip_threshold_log2 = options.skip_threshold_log2;
  a.stream = options.stream;
  a.skip_counts = options.skip_counts.as<std::int64_t>();
  a.skip_gaps_log2 = options.skip_gaps_log2.as<float>();
  return a;
}

// Every check, then the executor.
const Executor& prepare(const PlanGeometry& geometry, const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
                        const AttendOptions& options, const Place& place) {
  check_inputs(geometry, q, k, v, place);
  check_outputs(q, k, v, out, options.stats, place);
  check_options(options, place);
  return executor_for(options.executor, q.dtype, q.size(3), place);
}

}  // namespace

AttendResult attend(const TilePlan& plan, const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
                    const AttendOptions& options, Workspace& ws) {
  const Executor& executor = prepare(plan.geometry(), q, k, v, out, options, {});
  check_skip_gaps(plan, options.skip_gaps_log2, executor);
  SkipCounts counts;
  if (out.numel() > 0) {
    const Workspace::Scope scope(ws);
    AttendArgs args = to_args(q, k, v, out, options);
    args.plan = &plan;
    counts = executor.run(args, ws);
  }
  return {.executor = executor.name, .granules_tested = counts.tested, .granules_skipped = counts.skipped};
}

AttendResult attend(const DevicePlan& plan, const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
                    const AttendOptions& options, DeviceWorkspace& ws) {
  const Place place{Device::cuda, ws.device_index()};
  if (plan.device_index() >= 0 && plan.device_index() != place.gpu) {
    refuse("plan", "lists on " + place.text() + ", like the workspace", "lists on cuda:" + std::to_string(plan.device_index()));
  }
  const Executor& executor = prepare(plan.geometry(), q, k, v, out, options, place);
  if (out.numel() > 0) {
    const DeviceWorkspace::Scope scope(ws);
    AttendArgs args = to_args(q, k, v, out, options);
    args.device_plan = &plan;
    executor.launch(args, ws);
  }
  return {.executor = executor.name};
}

std::vector<GpuInfo> gpus() {
  std::vector<GpuInfo> infos;
  for (const Gpu& gpu : query_gpus().found) {
    infos.push_back({static_cast<int>(infos.size()), gpu.name, gpu.capability / 10, gpu.capability % 10});
  }
  return infos;
}

}  // namespace winnow
