// Numeric codecs, views, workspace, threads, random numbers.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/finite.h"
#include "core/huge_pages.h"
#include "core/label.h"
#include "core/line_fit.h"
#include "core/numeric.h"
#include "core/random.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "core/threads.h"
#include "tests/support/message_of.h"
#include "winnow/dlpack.h"
#include "winnow/error.h"
#include "winnow/tensor.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

TEST(Numeric, Bf16RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0F).bits, 0x3F80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808000U)).bits, 0x3F80);  // tie to even, down
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F818000U)).bits, 0x3F82);  // tie to even, up
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_TRUE(std::isnan(round_bf16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(round_bf16(std::bit_cast<float>(0x7F800001U))));  // a NaN whose high bits are all zero
  EXPECT_EQ(round_bf16(-std::numeric_limits<float>::infinity()), -std::numeric_limits<float>::infinity());
}

TEST(Numeric, F16RoundTripsEveryValue) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const f16 h{static_cast<std::uint16_t>(bits)};
    const float x = to_f32(h);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(to_f32(to_f16(x))));
    } else {
      ASSERT_EQ(to_f16(x).bits, h.bits) << bits;
    }
  }
  EXPECT_EQ(to_f16(65519.0F).bits, 0x7BFF);
  EXPECT_EQ(to_f16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(to_f16(0x1p-25F).bits, 0);  // tie to even zero
  EXPECT_EQ(to_f16(0x1.8p-25F).bits, 1);
  EXPECT_EQ(to_f16(0x1p-14F).bits, 0x0400);
}

TEST(TensorView, SlicesKeepStrides) {
  Tensor t(DType::f32, {2, 3, 4});
  std::iota(t.as<float>(), t.as<float>() + 24, 0.0F);
  const TensorView s = t.view().slice(1, 1, 3);
  EXPECT_EQ(s.describe(), "[2,2,4] f32");
  EXPECT_EQ(*s.as<float>(), 4.0F);
  EXPECT_FALSE(s.is_contiguous());
  EXPECT_THROW(s.reshape({4, 4}), Error);
  EXPECT_THROW(t.view().slice(1, 2, 4), Error);
  EXPECT_EQ(t.view().reshape({6, 4}).describe(), "[6,4] f32");
}

TEST(TensorView, RefusesNegativeAndHugeShapes) {
  float x = 0.0F;
  EXPECT_THROW(TensorView(&x, DType::f32, {-1}), Error);
  EXPECT_THROW(TensorView(&x, DType::f32, {std::int64_t{1} << 40, std::int64_t{1} << 40}), Error);
  EXPECT_EQ(TensorView(&x, DType::f32, {0, 5}).numel(), 0);
}

TEST(TensorView, NeedsShapeAndStridesWithinReach) {
  float x[6] = {};
  const std::int64_t shape[] = {2, 3};
  const std::int64_t far[] = {std::int64_t{1} << 61U, 1};
  EXPECT_THROW(TensorView(x, DType::f32, nullptr, 2), Error);
  EXPECT_THROW(TensorView::strided(x, DType::f32, shape, nullptr, 2), Error);
  EXPECT_THROW(TensorView::strided(x, DType::f32, shape, far, 2), Error);
  EXPECT_EQ(TensorView(x, DType::f32, nullptr, 0).rank, 0);
  DLTensor tensor = {};
  tensor.data = x;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = 2;
  tensor.dtype = {kDLFloat, 32, 1};
  EXPECT_THROW(from_dlpack(tensor), Error);
}

TEST(TensorView, GoesThroughDlpack) {
  Tensor t(DType::bf16, {2, 5, 3});
  TensorView view = t.view().slice(1, 1, 4);
  DLTensor dl = to_dlpack(view);
  const TensorView back = from_dlpack(dl);
  EXPECT_EQ(back.describe(), view.describe());
  EXPECT_EQ(back.data, view.data);
  EXPECT_EQ(back.strides, view.strides);
  dl.dtype.lanes = 2;
  EXPECT_THROW(from_dlpack(dl), Error);
  dl.dtype.lanes = 1;
  dl.dtype.bits = 4;
  EXPECT_THROW(from_dlpack(dl), Error);
  dl.dtype.bits = 16;
  dl.device.device_type = kDLMetal;
  EXPECT_THROW(from_dlpack(dl), Error);
}

TEST(Tensor, LargeOnesAreWholeHugePagesOfZeros) {
  const auto address = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.view().data); };
  const Tensor small(DType::u8, {1000});
  EXPECT_EQ(address(small) % 64, 0U);
  for (const std::int64_t bytes : {std::int64_t{1} << 20U, std::int64_t{3} << 20U, (std::int64_t{4} << 20U) + 1}) {
    const Tensor large(DType::u8, {bytes});
    EXPECT_EQ(address(large) % kHugePage, 0U);
    const auto* p = large.as<std::uint8_t>();
    EXPECT_EQ(std::count(p, p + bytes, 0), bytes);
  }
}

TEST(Workspace, SecondPassTakesNothingFromTheSystem) {
  Workspace ws;
  const auto pass = [&] {
    const Workspace::Scope outer(ws);
    ws.allocate<float>(1000000);
    {
      const Workspace::Scope inner(ws);
      ws.allocate<float>(2000000);
    }
    auto* p = ws.allocate<double>(10);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 64, 0U);
    ws.allocate<float>(3000000);
  };
  pass();
  ws.reset();
  const std::size_t taken = ws.system_allocations();
  for (int i = 0; i < 10; ++i) pass();
  EXPECT_EQ(ws.system_allocations(), taken);
  EXPECT_EQ(ws.used_bytes(), 0U);
  EXPECT_GE(ws.peak_bytes(), 16000000U);
}

TEST(Workspace, SizesThatOverflowAreRefused) {
  Workspace ws;
  EXPECT_THROW(ws.allocate<double>((std::size_t{1} << 61U) + 1), Error);  // 8 bytes, modulo 2^64
  EXPECT_THROW(ws.allocate_bytes(static_cast<std::size_t>(-1)), Error);
}

TEST(Workspace, ResetInsideScopeIsRefused) {
  Workspace ws;
  const Workspace::Scope scope(ws);
  EXPECT_THROW(ws.reset(), Error);
}

TEST(Threads, EveryIndexRunsOnce) {
  for (const int n : {1, 2, 3}) {
    set_num_threads(n);
    EXPECT_EQ(num_threads(), n);
    for (const std::int64_t tasks : {1, 127, 1000, 5003}) {  // taken one by one, in fives, in sixteens; the last ones are fewer
      std::vector<std::atomic<int>> hits(static_cast<std::size_t>(tasks));
      parallel_for(tasks, [&](std::int64_t i, int worker) {
        EXPECT_LT(worker, n);
        ++hits[static_cast<std::size_t>(i)];
        parallel_for(2, [&](std::int64_t, int inner) { EXPECT_EQ(inner, 0); });
      });
      for (const auto& h : hits) EXPECT_EQ(h.load(), 1);
    }
  }
  set_num_threads(0);
}

TEST(Threads, FirstExceptionComesBack) {
  set_num_threads(2);
  EXPECT_THROW(parallel_for(100,
                            [](std::int64_t i, int) {
                              if (i == 7) throw std::runtime_error("seven");
                            }),
               std::runtime_error);
  std::atomic<int> count{0};
  parallel_for(10, [&](std::int64_t, int) { ++count; });  // the pool still works
  EXPECT_EQ(count.load(), 10);
  set_num_threads(0);
}

TEST(Threads, RefusalOfTheSystemIsAnError) {
  pthread_attr_t usual;
  pthread_attr_t huge;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 46U), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  std::string what;
  try {
    set_num_threads(5);
  } catch (const Error& error) {
    what = error.what();
  }
  pthread_setattr_default_np(&usual);
  pthread_attr_destroy(&huge);
  pthread_attr_destroy(&usual);
  EXPECT_NE(what.find("[threads] expected to start 5 threads, got "), std::string::npos) << what;
  set_num_threads(2);  // later ones can start again
  EXPECT_EQ(num_threads(), 2);
  set_num_threads(0);
}

// Known answers: Random123's kat_vectors for philox4x32-10.
TEST(Random, PhiloxMatchesKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, NormalHasUnitMoments) {
  std::vector<float> x(100001);
  fill_normal(x, 42);
  double sum = 0.0;
  double squares = 0.0;
  for (const float v : x) {
    ASSERT_TRUE(std::isfinite(v));
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const auto n = static_cast<double>(x.size());
  EXPECT_NEAR(sum / n, 0.0, 0.02);
  EXPECT_NEAR(squares / n, 1.0, 0.02);
  std::vector<float> prefix(5);
  fill_normal(prefix, 42);
  EXPECT_TRUE(std::equal(prefix.begin(), prefix.end(), x.begin()));
  fill_normal(prefix, 43);
  EXPECT_NE(prefix[0], x[0]);
}

TEST(LineFit, IsTheLeastSquaresLine) {
  const std::vector<std::array<double, 2>> points = {{0.0, 1.0}, {1.0, 2.0}, {2.0, 6.0}};
  const LineFit fit = fit_straight_line(points);
  EXPECT_DOUBLE_EQ(fit.slope, 2.5);
  EXPECT_DOUBLE_EQ(fit.at(0.0), 0.5);
  EXPECT_DOUBLE_EQ(fit.r2, 12.5 / 14.0);
  EXPECT_FALSE(std::isfinite(fit_straight_line({points.data(), 1}).slope));
}

TEST(Text, ShortNumbers) {
  EXPECT_EQ(short_number(0.25), "0.25");
  EXPECT_EQ(short_number(1e-5), "1e-05");
  EXPECT_EQ(short_number(0.1F), "0.1");
  EXPECT_EQ(short_number(1.0000001), "1.0000001");  // out of [0,1], and to be seen as that
  EXPECT_EQ(short_number(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(short_number(-std::numeric_limits<float>::quiet_NaN()), "nan");
  EXPECT_EQ(short_number(std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(Text, CountedNouns) {
  EXPECT_EQ(counted(0, "value"), "0 values");
  EXPECT_EQ(counted(1, "value"), "1 value");
  EXPECT_EQ(counted(2, "value"), "2 values");
}

TEST(Finite, EveryDtypeAndPlace) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Tensor wide(DType::f32, {70000});  // more than one block
    Tensor x(dtype, {70000});
    std::fill_n(wide.as<float>(), wide.numel(), -65504.0F);
    convert(wide, x);
    EXPECT_TRUE(all_finite(x)) << dtype_name(dtype);
    for (const std::int64_t place : {0, 65535, 65536, 69999}) {
      for (const float bad : {inf, -inf, std::nanf("")}) {
        wide.as<float>()[place] = bad;
        convert(wide, x);
        EXPECT_FALSE(all_finite(x)) << dtype_name(dtype) << " " << place << " " << bad;
      }
      wide.as<float>()[place] = 1.0F;
    }
  }
  EXPECT_TRUE(all_finite(Tensor(DType::f32, {0})));
}

TEST(Label, StandsBeforeWhatWasRefused) {
  EXPECT_EQ(with_label("a", "b", [] { return 7; }), 7);
  EXPECT_EQ(tests::message_of([] { with_label("compare", "one", [] { throw Error("config", "cdf: expected less"); }); }),
            "[compare] one: cdf: expected less");
  EXPECT_THROW(with_label("a", "b", [] { throw Cancelled("generate"); }), Cancelled);
}

}  // namespace
}  // namespace winnow
