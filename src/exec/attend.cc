// attend(): every check, the choice of an executor, nothing else.
#include "winnow/attend.h"

#include <cmath>
#include <initializer_list>
#include <utility>

#include "core/env.h"
#include "core/overlap.h"
#include "exec/attend_args.h"
#include "exec/registry.h"
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
void check_memory(const char* name, const TensorView& t) {
  if (t.device != Device::cpu) refuse(name, "memory of the cpu", "memory of a cuda device");
  if (t.numel() == 0) return;
  if (t.data == nullptr) refuse(name, t.describe() + " in memory", "a null pointer");
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

void check_inputs(const TilePlan& plan, const TensorView& q, const TensorView& k, const TensorView& v) {
  if (q.rank != 4 || !is_float(q.dtype)) refuse("q", "[B,Sq,H,D] f32, f16 or bf16", q.describe());
  const std::int64_t H = q.size(2);
  const std::int64_t D = q.size(3);
  if (D < 1) refuse("q", "a head dim of at least 1", q.describe());
  const bool heads_fit = k.rank == 4 && (k.size(2) > 0 ? H % k.size(2) == 0 : H == 0);
  const PlanGeometry& g = plan.geometry();
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
    check_memory(name, *t);
    check_contiguous_heads(name, *t);
  }
}

void check_outputs(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out, const RowStats& stats) {
  if (out.rank != 4 || out.shape != q.shape) refuse("out", q.describe() + " or another float dtype", out.describe());
  if (!is_float(out.dtype)) refuse("out", "f32, f16 or bf16", out.describe());
  check_memory("out", out);
  check_contiguous_heads("out", out);
  const TensorView rows(static_cast<void*>(nullptr), DType::f32, {q.size(0), q.size(2), q.size(1)});
  const Named lse = {"stats.lse", &stats.lse};
  const Named inv_l = {"stats.inv_l", &stats.inv_l};
  for (const auto& [name, t] : {lse, inv_l}) {
    if (t->data == nullptr && t->rank == 0) continue;  // not asked for
    if (t->rank != 3 || t->shape != rows.shape || t->dtype != DType::f32) refuse(name, rows.describe(), t->describe());
    check_memory(name, *t);
  }
  const Named o = {"out", &out};
  check_distinct(o, {{"q", &q}, {"k", &k}, {"v", &v}, lse, inv_l});
  check_distinct(lse, {{"q", &q}, {"k", &k}, {"v", &v}, inv_l});
  check_distinct(inv_l, {{"q", &q}, {"k", &k}, {"v", &v}});
}

void check_options(const AttendOptions& options) {
  if (!std::isnan(options.scale) && !std::isfinite(options.scale)) {
    refuse("scale", "a finite number, or NaN for 1/sqrt(D)", std::to_string(options.scale));
  }
  if (!(options.skip_threshold_log2 <= 0.0F)) {
    refuse("skip_threshold_log2", "a number <= 0, or -inf for off", std::to_string(options.skip_threshold_log2));
  }
}

Strides token_strides(const TensorView& t) { return {t.stride(0), t.stride(1), t.stride(2)}; }
RowStrides row_strides(const TensorView& t) { return {t.stride(0), t.stride(1), t.stride(2)}; }

AttendArgs to_args(const TilePlan& plan, const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
                   const AttendOptions& options) {
  AttendArgs a;
  a.plan = &plan;
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
  return a;
}

}  // namespace

AttendResult attend(const TilePlan& plan, const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
                    const AttendOptions& options, Workspace& ws) {
  check_inputs(plan, q, k, v);
  check_outputs(q, k, v, out, options.stats);
  check_options(options);
  const std::string forced = options.executor.empty() ? env::executor() : std::string(options.executor);
  const Executor& executor = choose_executor(forced, options.executor.empty() ? "WINNOW_EXECUTOR" : "executor", q.dtype, q.size(3));
  SkipCounts counts;
  if (out.numel() > 0) {
    const Workspace::Scope scope(ws);
    counts = executor.run(to_args(plan, q, k, v, out, options), ws);
  }
  return {.executor = executor.name, .granules_tested = counts.tested, .granules_skipped = counts.skipped};
}

}  // namespace winnow
