// One attention problem for tests: random inputs in any dtype and layout, outputs inside guard bytes, and the comparison of an
// executor with the fp64 definition on the same plan.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/numeric.h"
#include "core/random.h"
#include "exec/reference.h"
#include "exec/registry.h"
#include "winnow/attend.h"
#include "winnow/plan.h"
#include "winnow/workspace.h"

namespace winnow {

inline void put(const TensorView& t, std::int64_t i, float x) {
  if (t.dtype == DType::f32) t.as<float>()[i] = x;
  if (t.dtype == DType::bf16) t.as<bf16>()[i] = to_bf16(x);
  if (t.dtype == DType::f16) t.as<f16>()[i] = to_f16(x);
}
inline float get(const TensorView& t, std::int64_t i) {
  if (t.dtype == DType::f32) return t.as<float>()[i];
  return t.dtype == DType::bf16 ? to_f32(t.as<bf16>()[i]) : to_f32(t.as<f16>()[i]);
}

// A [B,S,H,D] tensor in a buffer of its own with poisoned gaps and guards, so that strays show.
class Buffer {
 public:
  static constexpr std::size_t kGuard = 192;  // bytes before and after; keeps 64-byte alignment
  static constexpr std::byte kPoison{0xFF};   // a NaN in every float format

  // pad > 0 leaves gaps of that many elements after each head, and moves the data by as many. heads_first: a [B,S,H,D] tensor
  // that lies as [B,H,S,D] in memory.
  Buffer(DType dtype, std::vector<std::int64_t> shape, std::int64_t pad = 0, bool heads_first = false) {
    std::vector<std::int64_t> strides(shape.size());
    if (heads_first) std::swap(shape[1], shape[2]);
    std::int64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      strides[axis] = stride;
      stride *= std::max<std::int64_t>(shape[axis], 1);
      if (axis + 1 == shape.size()) stride += pad;
    }
    bytes_.assign(2 * kGuard + static_cast<std::size_t>(stride + pad) * dtype_bytes(dtype) + 64, kPoison);
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data()) + kGuard;
    std::byte* base = bytes_.data() + kGuard + (64 - address % 64) % 64 + static_cast<std::size_t>(pad) * dtype_bytes(dtype);
    view = TensorView::strided(base, dtype, shape.data(), strides.data(), static_cast<int>(shape.size()));
    if (heads_first) {
      std::swap(view.shape[1], view.shape[2]);
      std::swap(view.strides[1], view.strides[2]);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <class F>
  void each(F f) const {  // f(element offset)
    const auto& n = view.shape;
    const auto& s = view.strides;
    const std::int64_t last = view.rank == 4 ? n[3] : 1;
    const std::int64_t last_stride = view.rank == 4 ? s[3] : 1;
    for (std::int64_t a = 0; a < n[0]; ++a)
      for (std::int64_t b = 0; b < n[1]; ++b)
        for (std::int64_t c = 0; c < n[2]; ++c)
          for (std::int64_t d = 0; d < last; ++d) f(a * s[0] + b * s[1] + c * s[2] + d * last_stride);
  }
  void fill_random(std::uint64_t seed, float scale = 1.0F) {
    std::vector<float> x(static_cast<std::size_t>(view.numel()));
    fill_normal(x, seed);
    std::size_t i = 0;
    each([&](std::int64_t at) { put(view, at, scale * x[i++]); });
  }
  std::vector<float> values() const {
    std::vector<float> x;
    x.reserve(static_cast<std::size_t>(view.numel()));
    each([&](std::int64_t at) { x.push_back(get(view, at)); });
    return x;
  }
  // Every byte that belongs to no element is still poison.
  bool intact() const {
    std::vector<std::byte> copy = bytes_;
    const auto offset = static_cast<std::byte*>(view.data) - bytes_.data();
    const auto size = static_cast<std::int64_t>(dtype_bytes(view.dtype));
    each([&](std::int64_t at) { std::fill_n(copy.begin() + offset + at * size, size, kPoison); });
    return std::all_of(copy.begin(), copy.end(), [](std::byte b) { return b == kPoison; });
  }
  bool has_poison() const {
    bool found = false;
    std::vector<std::byte> poison(dtype_bytes(view.dtype), kPoison);
    const auto* base = static_cast<const std::byte*>(view.data);
    each([&](std::int64_t at) {
      found = found || std::memcmp(base + at * static_cast<std::int64_t>(poison.size()), poison.data(), poison.size()) == 0;
    });
    return found;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte>& bytes() { return bytes_; }

  TensorView view;

 private:
  std::vector<std::byte> bytes_;
};

struct Shape {
  std::int64_t B = 1;
  std::int64_t H = 1;
  std::int64_t Hk = 1;
  std::int64_t Sq = 1;
  std::int64_t Sk = 1;
  std::int64_t D = 64;
  std::string text() const {
    std::ostringstream text;
    text << 'B' << B << " H" << H << '/' << Hk << " Sq" << Sq << " Sk" << Sk << " D" << D;
    return text.str();
  }
};

inline PlanGeometry geometry_of(const Shape& s, int tile_k = 64, int mean_group = 64) {
  PlanGeometry g;
  g.B = s.B;
  g.H = s.H;
  g.Sq = s.Sq;
  g.Sk = s.Sk;
  g.tile_k = tile_k;
  g.mean_group = mean_group;
  return g;
}

struct Outcome {
  std::vector<float> out;
  std::vector<float> lse;
  std::vector<float> inv_l;
  SkipCounts counts;
};

// ||a - b|| / ||b||
inline double rel_l2(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return error == 0.0 ? 0.0 : std::sqrt(error / norm);
}

struct Problem {
  Problem(const Shape& s, DType dtype, std::int64_t pad = 0, bool heads_first = false)
      : shape(s),
        q(dtype, {s.B, s.Sq, s.H, s.D}, pad, heads_first),
        k(dtype, {s.B, s.Sk, s.Hk, s.D}, pad, heads_first),
        v(dtype, {s.B, s.Sk, s.Hk, s.D}, pad, heads_first) {
    q.fill_random(1);
    k.fill_random(2);
    v.fill_random(3);
  }

  // Runs into poisoned outputs and checks that every element was written, and nothing else.
  Outcome run(const std::string& executor, const TilePlan& plan, DType out_dtype = DType::f32, std::int64_t pad = 0) {
    Buffer out(out_dtype, {shape.B, shape.Sq, shape.H, shape.D}, pad);
    Buffer lse(DType::f32, {shape.B, shape.H, shape.Sq});
    Buffer inv_l(DType::f32, {shape.B, shape.H, shape.Sq});
    const auto before = {q.bytes(), k.bytes(), v.bytes()};
    options.executor = executor;
    options.stats = {lse.view, inv_l.view};
    const AttendResult r = attend(plan, q.view, k.view, v.view, out.view, options, ws);
    EXPECT_EQ(r.executor, executor);
    EXPECT_EQ(ws.used_bytes(), 0U);
    EXPECT_TRUE(out.intact() && lse.intact() && inv_l.intact()) << "wrote outside of an output";
    EXPECT_FALSE(out.has_poison() || lse.has_poison() || inv_l.has_poison()) << "left an output unwritten";
    const auto after = {q.bytes(), k.bytes(), v.bytes()};
    EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin())) << "changed an input";
    return {out.values(), lse.values(), inv_l.values(), {r.granules_tested, r.granules_skipped}};
  }

  // The definition on the same inputs, with that skip granule.
  Outcome define(const TilePlan& plan, SkipGranule granule = {}) {
    Buffer out(DType::f32, {shape.B, shape.Sq, shape.H, shape.D});
    Buffer lse(DType::f32, {shape.B, shape.H, shape.Sq});
    Buffer inv_l(DType::f32, {shape.B, shape.H, shape.Sq});
    AttendArgs a;
    a.plan = &plan;
    a.B = shape.B;
    a.H = shape.H;
    a.Hk = shape.Hk;
    a.Sq = shape.Sq;
    a.Sk = shape.Sk;
    a.D = static_cast<int>(shape.D);
    a.dtype = q.view.dtype;
    a.q = q.view.data;
    a.k = k.view.data;
    a.v = v.view.data;
    a.out = out.view.data;
    const auto tokens = [](const TensorView& t) { return Strides{t.stride(0), t.stride(1), t.stride(2)}; };
    a.q_strides = tokens(q.view);
    a.k_strides = tokens(k.view);
    a.v_strides = tokens(v.view);
    a.out_strides = tokens(out.view);
    a.lse = lse.view.as<float>();
    a.inv_l = inv_l.view.as<float>();
    a.lse_strides = {lse.view.stride(0), lse.view.stride(1), lse.view.stride(2)};
    a.inv_l_strides = a.lse_strides;
    a.scale = std::isnan(options.scale) ? 1.0F / std::sqrt(static_cast<float>(shape.D)) : options.scale;
    a.skip_threshold_log2 = options.skip_threshold_log2;
    const SkipCounts counts = attend_reference(a, granule, ws);
    return {out.values(), lse.values(), inv_l.values(), counts};
  }

  Shape shape;
  Buffer q, k, v;
  AttendOptions options;
  Workspace ws;
};

// The CPU executors of this machine that take `dtype`, the definition left out.
inline std::vector<const Executor*> executors_for(DType dtype) {
  std::vector<const Executor*> found;
  for (const Executor& e : executor_records()) {
    if (e.device() != Device::cpu || !e.missing().empty() || e.only_by_name) continue;
    if (std::find(e.dtypes.begin(), e.dtypes.end(), dtype) != e.dtypes.end()) found.push_back(&e);
  }
  return found;
}

inline bool computes_in_bf16(const Executor& e) { return std::string(e.computes_in).starts_with("bf16"); }

// bf16 products: weights are rounded to 8 bits, 2^-9 each; f32: rounding of sums of up to 256 products.
inline double tolerance(const Executor& e) { return computes_in_bf16(e) ? 4e-3 : 2e-6; }

inline void expect_close(const Outcome& got, const Outcome& want, const Executor& e, double factor = 1.0) {
  EXPECT_LE(rel_l2(got.out, want.out), factor * tolerance(e));
  // No outlier either: 2 x the largest error that rounding the weights to the executor's precision can make.
  const double unit = computes_in_bf16(e) ? 0x1p-8 : 0x1p-19;
  double largest = 0.0;
  for (const float x : want.out) largest = std::max(largest, std::fabs(double{x}));
  for (std::size_t i = 0; i < got.out.size(); ++i) {
    ASSERT_LE(std::fabs(double{got.out[i]} - want.out[i]), 2.0 * factor * unit * largest) << "element " << i;
  }
  for (std::size_t i = 0; i < got.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      ASSERT_EQ(got.lse[i], want.lse[i]) << "row " << i;
    } else {
      ASSERT_NEAR(got.lse[i], want.lse[i], factor * (computes_in_bf16(e) ? 5e-3 : 2e-5) * std::max(1.0F, std::fabs(want.lse[i])))
          << "row " << i;
    }
    ASSERT_NEAR(got.inv_l[i], want.inv_l[i], factor * (computes_in_bf16(e) ? 5e-3 : 1e-4) * want.inv_l[i]) << "row " << i;
  }
}

// `share` of the tiles of each row, at random; at least `least` of them.
inline std::vector<std::vector<std::int32_t>> random_rows(const PlanGeometry& g, double share, std::size_t least, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<std::vector<std::int32_t>> rows(static_cast<std::size_t>(g.rows()));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::int64_t n = g.key_tiles(static_cast<std::int64_t>(r) / std::max<std::int64_t>(g.H * g.Gq(), 1));
    std::vector<std::int32_t> all(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    std::shuffle(all.begin(), all.end(), rng);
    const auto keep = static_cast<std::size_t>(std::lround(share * static_cast<double>(n)));
    all.resize(std::min(all.size(), std::max(least, keep)));
    std::sort(all.begin(), all.end());
    rows[r] = std::move(all);
  }
  return rows;
}

}  // namespace winnow
