// attend(): refused arguments, the choice of an executor, and what the definition itself must satisfy.
#include "winnow/attend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "core/random.h"
#include "winnow/error.h"
#include "winnow/plan.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

struct Call {
  Tensor q{DType::f32, {1, 130, 4, 16}};
  Tensor k{DType::f32, {1, 100, 2, 16}};
  Tensor v{DType::f32, {1, 100, 2, 16}};
  Tensor out{DType::f32, {1, 130, 4, 16}};
  TilePlan plan = TilePlan::dense({.B = 1, .H = 4, .Sq = 130, .Sk = 100}, DenseReason::requested);
  AttendOptions options;
  Workspace ws;

  AttendResult run() { return attend(plan, q, k, v, out, options, ws); }
  std::string error() {
    try {
      run();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
};

TEST(Attend, RefusesWhatDoesNotFit) {
  {
    Call c;
    c.q = Tensor(DType::f32, {130, 4, 16});
    EXPECT_EQ(c.error(), "[attend] q: expected [B,Sq,H,D] f32, f16 or bf16, got [130,4,16] f32");
  }
  {
    Call c;
    c.k = Tensor(DType::f32, {1, 100, 2, 8});
    EXPECT_EQ(c.error(), "[attend] k: expected [1,100,2,16] f32, got [1,100,2,8] f32");
  }
  {
    Call c;
    c.k = Tensor(DType::f32, {1, 100, 3, 16});
    EXPECT_EQ(c.error(), "[attend] k: expected [1,100,a divisor of 4,16] f32, got [1,100,3,16] f32");
  }
  {
    Call c;
    c.k = Tensor(DType::bf16, {1, 100, 2, 16});
    EXPECT_EQ(c.error(), "[attend] k: expected [1,100,2,16] f32, got [1,100,2,16] bf16");
  }
  {
    Call c;
    c.v = Tensor(DType::f32, {1, 99, 2, 16});
    EXPECT_EQ(c.error(), "[attend] v: expected [1,100,2,16] f32, got [1,99,2,16] f32");
  }
  {
    Call c;
    c.out = Tensor(DType::i32, {1, 130, 4, 16});
    EXPECT_EQ(c.error(), "[attend] out: expected f32, f16 or bf16, got [1,130,4,16] i32");
  }
  {
    Call c;
    c.plan = TilePlan::dense({.B = 1, .H = 4, .Sq = 128, .Sk = 100}, DenseReason::requested);
    EXPECT_EQ(c.error(), "[attend] plan: expected B=1 H=4 Sq=130 Sk=100, got B=1 H=4 Sq=128 Sk=100");
  }
  {
    Call c;
    Tensor lse(DType::f32, {1, 130, 4});
    c.options.stats.lse = lse;
    EXPECT_EQ(c.error(), "[attend] stats.lse: expected [1,4,130] f32, got [1,130,4] f32");
  }
  {
    Call c;
    c.options.scale = std::numeric_limits<float>::infinity();
    EXPECT_EQ(c.error(), "[attend] scale: expected a finite number, or NaN for 1/sqrt(D), got inf");
  }
  {
    Call c;
    c.options.skip_threshold_log2 = 0.5F;
    EXPECT_THAT(c.error(), HasSubstr("[attend] skip_threshold_log2: expected a number <= 0"));
    c.options.skip_threshold_log2 = std::nanf("");
    EXPECT_THAT(c.error(), HasSubstr("[attend] skip_threshold_log2: expected a number <= 0"));
  }
}

TEST(Attend, RefusesWhatIsForGpus) {
  {
    Call c;
    TensorView k = c.k;
    k.device = Device::cuda;
    try {
      attend(c.plan, c.q, k, c.v, c.out, {}, c.ws);
      ADD_FAILURE() << "memory of a GPU with a workspace of the cpu";
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "[attend] k: expected memory of the cpu, like the workspace, got memory of cuda:0");
    }
  }
  {
    Call c;
    c.options.stream = &c;
    EXPECT_EQ(c.error(), "[attend] stream: expected null for memory of the cpu, got a stream");
  }
  {
    Call c;
    const Tensor counts(DType::i64, {2});
    c.options.skip_counts = counts;
    EXPECT_THAT(c.error(), HasSubstr("[attend] skip_counts: expected nothing for memory of the cpu"));
  }
}

TEST(Attend, RefusesMemoryThatDoesNotFit) {
  Call c;
  TensorView bad = c.k;
  for (const std::int64_t stride : {std::numeric_limits<std::int64_t>::max() / 2, std::numeric_limits<std::int64_t>::min()}) {
    bad.strides[1] = stride;
    EXPECT_THROW(attend(c.plan, c.q, bad, c.v, c.out, {}, c.ws), Error);
    TensorView out = c.out;
    out.strides[1] = stride;
    EXPECT_THROW(attend(c.plan, c.q, c.k, c.v, out, {}, c.ws), Error);
  }
  bad = c.k;
  bad.strides[3] = 2;
  EXPECT_THROW(attend(c.plan, c.q, bad, c.v, c.out, {}, c.ws), Error);
  bad = c.k;
  bad.data = nullptr;
  EXPECT_THROW(attend(c.plan, c.q, bad, c.v, c.out, {}, c.ws), Error);
  bad = c.k;
  bad.device = Device::cuda;
  EXPECT_THROW(attend(c.plan, c.q, bad, c.v, c.out, {}, c.ws), Error);
  bad = c.k;
  bad.data = c.k.as<char>() + 1;
  EXPECT_THROW(attend(c.plan, c.q, bad, c.v, c.out, {}, c.ws), Error);
  bad = c.out;
  bad.strides[1] = 0;
  EXPECT_THROW(attend(c.plan, c.q, c.k, c.v, bad, {}, c.ws), Error);
  EXPECT_THROW(attend(c.plan, c.q, c.k, c.v, c.q, {}, c.ws), Error);
}

TEST(Attend, RefusesOutputsThatOverlap) {
  // One buffer of S rows of 192 numbers; parts of it are q, out, lse and inv_l.
  constexpr std::int64_t S = 130;
  Tensor memory(DType::f32, {1, S, 12 * 16});
  const auto part = [&](std::int64_t offset) {
    const std::int64_t shape[] = {1, S, 4, 16};
    const std::int64_t strides[] = {S * 192, 192, 16, 1};
    return TensorView::strided(memory.as<float>() + offset, DType::f32, shape, strides, 4);
  };
  const auto rows = [&](std::int64_t offset) {
    const std::int64_t shape[] = {1, 4, S};
    const std::int64_t strides[] = {S * 192, 1, 192};
    return TensorView::strided(memory.as<float>() + offset, DType::f32, shape, strides, 3);
  };
  Call c;
  const auto error = [&](const TensorView& q, const TensorView& out, const RowStats& stats) -> std::string {
    try {
      attend(c.plan, q, c.k, c.v, out, {.stats = stats}, c.ws);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error(part(0), part(64), {rows(128), rows(132)}), "no error");  // interleaved row by row
  EXPECT_EQ(error(part(0), part(63), {}), "[attend] out: expected memory of its own, got an overlap with q");
  EXPECT_EQ(error(part(64), part(1), {}), "[attend] out: expected memory of its own, got an overlap with q");
  EXPECT_EQ(error(part(0), part(64), {rows(127), {}}), "[attend] out: expected memory of its own, got an overlap with stats.lse");
  EXPECT_EQ(error(part(0), part(64), {rows(63), {}}), "[attend] out: expected memory of its own, got an overlap with stats.lse");
  EXPECT_EQ(error(part(0), part(64), {{}, rows(60)}), "[attend] stats.inv_l: expected memory of its own, got an overlap with q");
  EXPECT_EQ(error(part(0), part(64), {rows(128), rows(131)}),
            "[attend] stats.lse: expected memory of its own, got an overlap with stats.inv_l");
  TensorView folded = c.out;
  folded.strides[1] = 63;
  EXPECT_EQ(error(c.q, folded, {}), "[attend] out: expected strides that give every element memory of its own, got elements that overlap");
}

TEST(Attend, ExecutorsCanBeListedAndForced) {
  Call c;
  bool any = false;
  for (const ExecutorInfo& info : executors()) {
    EXPECT_EQ(info.available, info.why_not.empty()) << info.name;
    c.options.executor = info.name;
    const bool takes = std::find(info.dtypes.begin(), info.dtypes.end(), DType::f32) != info.dtypes.end();
    if (info.device == Device::cuda) {
      EXPECT_THAT(c.error(), HasSubstr("[attend] executor: " + info.name + " works on memory of a GPU, not of the cpu"));
    } else if (info.available && takes) {
      EXPECT_EQ(c.run().executor, info.name);
      any = true;
    } else {
      EXPECT_THAT(c.error(), HasSubstr("[attend] executor: " + info.name + (info.available ? " takes " : " needs ")));
    }
  }
  EXPECT_TRUE(any);
  c.options.executor = "abacus";
  EXPECT_THAT(c.error(), HasSubstr("[attend] executor: expected one of "));
  EXPECT_THAT(c.error(), HasSubstr("reference, sm90_wgmma, sm80_mma, got \"abacus\""));
  c.options.executor = "";
  EXPECT_STRNE(c.run().executor, "reference");
}

TEST(Attend, EmptyProblemsAreFine) {
  for (const auto& [B, Sq, Sk] : {std::array<std::int64_t, 3>{0, 5, 5}, {1, 0, 5}, {1, 5, 0}}) {
    Call c;
    c.q = Tensor(DType::f32, {B, Sq, 4, 16});
    c.k = Tensor(DType::f32, {B, Sk, 2, 16});
    c.v = Tensor(DType::f32, {B, Sk, 2, 16});
    c.out = Tensor(DType::f32, {B, Sq, 4, 16});
    std::fill_n(c.out.as<float>(), c.out.numel(), 7.0F);
    c.plan = TilePlan::dense({.B = B, .H = 4, .Sq = Sq, .Sk = Sk}, DenseReason::requested);
    for (const ExecutorInfo& info : executors()) {
      if (!info.available || info.device != Device::cpu) continue;
      c.options.executor = info.name;
      if (info.name == "amx_bf16") continue;
      c.run();
      for (std::int64_t i = 0; i < c.out.numel(); ++i) EXPECT_EQ(c.out.as<float>()[i], 0.0F);
    }
  }
}

}  // namespace
}  // namespace winnow
