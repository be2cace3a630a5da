// Faults that users of other attention libraries have reported and that no other test here is about: docs/known-faults.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <vector>

#include "exec/attend_case.h"
#include "tests/support/message_of.h"
#include "winnow/error.h"

namespace winnow {
namespace {

TilePlan dense(const Shape& shape) { return TilePlan::dense(geometry_of(shape), DenseReason::requested); }

// SpargeAttn's mask API leaves a row that its mask empties uninitialised; flashinfer#4452: its LSE was finite.
TEST(KnownFaults, ARowWithoutTilesIsZero) {
  const Shape shape = {.Sq = 300, .Sk = 200, .D = 32};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Problem problem(shape, dtype);
    const TilePlan plan = PlanBuilder::from_rows(geometry_of(shape), Skipped::drop, {{0, 2}, {}, {3}});
    const Outcome want = problem.define(plan);
    for (const Executor* e : executors_for(dtype)) {
      SCOPED_TRACE(e->name);
      const Outcome got = problem.run(e->name, plan);
      expect_close(got, want, *e);
      for (std::size_t row = 128; row < 256; ++row) {
        ASSERT_EQ(got.lse[row], -INFINITY);
        ASSERT_EQ(got.inv_l[row], 0.0F);
        for (std::size_t d = 0; d < 32; ++d) ASSERT_EQ(got.out[row * 32 + d], 0.0F);
      }
    }
  }
}

// flashinfer PR#5257: in which base is the LSE? Two halves of the keys, merged by natural logarithms, are the whole.
TEST(KnownFaults, PartialResultsMergeByTheirLse) {
  const Shape shape = {.Sq = 130, .Sk = 450, .D = 24};
  Problem problem(shape, DType::f32);
  const PlanGeometry g = geometry_of(shape);
  const TilePlan first = PlanBuilder::from_rows(g, Skipped::drop, {{0, 2, 5}, {1, 6}});
  const TilePlan second = PlanBuilder::from_rows(g, Skipped::drop, {{1, 3, 4, 6, 7}, {0, 2, 3, 4, 5, 7}});
  const Outcome want = problem.define(dense(shape));
  for (const Executor* e : executors_for(DType::f32)) {
    SCOPED_TRACE(e->name);
    const Outcome a = problem.run(e->name, first);
    const Outcome b = problem.run(e->name, second);
    Outcome merged = a;
    for (std::size_t row = 0; row < merged.lse.size(); ++row) {
      const double lse = std::log(std::exp(double{a.lse[row]}) + std::exp(double{b.lse[row]}));
      merged.lse[row] = static_cast<float>(lse);
      merged.inv_l[row] = want.inv_l[row];  // of another maximum
      for (std::size_t i = row * 24; i < row * 24 + 24; ++i) {
        merged.out[i] = static_cast<float>(std::exp(a.lse[row] - lse) * a.out[i] + std::exp(b.lse[row] - lse) * b.out[i]);
      }
    }
    expect_close(merged, want, *e, 2.0);
  }
}

// SageAttention PR#98: NaN for fewer than 64 tokens. #23: noise at a head dim of 72.
TEST(KnownFaults, FewTokensAndOddHeadDims) {
  for (const Shape& shape : {Shape{.Sq = 9, .Sk = 9, .D = 64}, Shape{.Sq = 12, .Sk = 12, .D = 128}, Shape{.Sq = 200, .Sk = 130, .D = 72}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Problem problem(shape, dtype);
      for (const Executor* e : executors_for(dtype)) {
        SCOPED_TRACE(shape.text() + " " + e->name);
        expect_close(problem.run(e->name, dense(shape)), problem.define(dense(shape)), *e);
      }
    }
  }
}

// SageAttention#93: sums of large values overflowed f16.
TEST(KnownFaults, LargeValuesOverLongRows) {
  const Shape shape = {.Sq = 64, .Sk = 4033, .D = 64};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Problem problem(shape, dtype);
    problem.v.each([&](std::int64_t at) { put(problem.v.view, at, 1000.0F + get(problem.v.view, at)); });
    const Outcome want = problem.define(dense(shape));
    for (const Executor* e : executors_for(dtype)) {
      SCOPED_TRACE(e->name);
      expect_close(problem.run(e->name, dense(shape)), want, *e);
    }
  }
}

// vllm-omni#5865: most queries of a cross-attention came back zero. Every row is compared.
TEST(KnownFaults, CrossAttentionWithPaddedKeys) {
  const Shape shape = {.B = 2, .Sq = 4096, .Sk = 300, .D = 32};
  PlanGeometry g = geometry_of(shape);
  g.key_lengths = {300, 170};
  const TilePlan plan = TilePlan::dense(g, DenseReason::cross_attention);
  Problem problem(shape, DType::f32);
  const Outcome want = problem.define(plan);
  for (const Executor* e : executors_for(DType::f32)) {
    SCOPED_TRACE(e->name);
    expect_close(problem.run(e->name, plan), want, *e);
  }
}

// SageAttention#134: head dim 512 (a VAE's attention) ended in a ValueError deep inside. Here it is named before any work.
TEST(KnownFaults, HeadDimsThatNothingTakesAreNamed) {
  Problem problem({.Sq = 8, .Sk = 8, .D = 512}, DType::f32);
  Buffer out(DType::f32, {1, 8, 1, 512});
  const std::string error =
      tests::message_of([&] { attend(dense(problem.shape), problem.q.view, problem.k.view, problem.v.view, out.view, {}, problem.ws); });
  EXPECT_THAT(error, testing::HasSubstr("512"));
  EXPECT_TRUE(out.has_poison());
}

// Address space for a tensor whose tokens lie far apart; only what is touched takes memory.
class Sparse {
 public:
  Sparse(DType dtype, std::vector<std::int64_t> shape, std::int64_t token_stride)
      : bytes_(static_cast<std::size_t>(shape[1] * token_stride) * dtype_bytes(dtype)),
        memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    const std::int64_t strides[] = {shape[1] * token_stride, token_stride, shape[3], 1};
    if (good()) view = TensorView::strided(memory_, dtype, shape.data(), strides, 4);
  }
  ~Sparse() {
    if (good()) munmap(memory_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  bool good() const { return memory_ != MAP_FAILED; }
  TensorView view;

 private:
  std::size_t bytes_;
  void* memory_;
};

// SageAttention#388, ComfyUI#15263: noise once a tensor has more than 2^31 elements.
TEST(KnownFaults, OffsetsPast31Bits) {
  const Shape shape = {.H = 2, .Hk = 2, .Sq = 300, .Sk = 300, .D = 16};
  constexpr std::int64_t kStride = std::int64_t{1} << 23;
  static_assert(300 * kStride > std::int64_t{1} << 31);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Problem packed(shape, dtype);
    Sparse q(dtype, {1, 300, 2, 16}, kStride), k(dtype, {1, 300, 2, 16}, kStride), v(dtype, {1, 300, 2, 16}, kStride);
    Sparse out(DType::f32, {1, 300, 2, 16}, kStride);
    if (!q.good() || !k.good() || !v.good() || !out.good()) GTEST_SKIP() << "no address space";
    const Sparse* const spread[] = {&q, &k, &v};
    const Buffer* const source[] = {&packed.q, &packed.k, &packed.v};
    for (int t = 0; t < 3; ++t) {
      for (std::int64_t s = 0; s < 300; ++s) {
        for (std::int64_t i = 0; i < 32; ++i) put(spread[t]->view, s * kStride + i, get(source[t]->view, s * 32 + i));
      }
    }
    const TilePlan plan = PlanBuilder::from_rows(geometry_of(shape), Skipped::mean, {{0, 4}, {1, 2}, {3}, {4}, {0, 1, 2}, {2, 4}});
    for (const Executor* e : executors_for(dtype)) {
      SCOPED_TRACE(e->name);
      const Outcome want = packed.run(e->name, plan);
      attend(plan, q.view, k.view, v.view, out.view, {.executor = e->name}, packed.ws);
      for (std::int64_t s = 0; s < 300; ++s) {
        for (std::int64_t i = 0; i < 32; ++i) {
          ASSERT_EQ(out.view.as<float>()[s * kStride + i], want.out[static_cast<std::size_t>(s * 32 + i)]) << "token " << s;
        }
      }
    }
  }
}

}  // namespace
}  // namespace winnow
