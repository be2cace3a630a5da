// Block means and the inner loops: against plain definitions, and bit for bit between instruction sets.
#include "prep/block_stats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/numeric.h"
#include "core/random.h"
#include "prep/block_kernels.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

std::vector<float> normal(std::size_t n, std::uint64_t seed) {
  std::vector<float> x(n);
  fill_normal(x, seed);
  return x;
}

std::vector<std::uint16_t> narrow(const std::vector<float>& x, DType dtype) {
  std::vector<std::uint16_t> out;
  out.reserve(x.size());
  for (const float v : x) out.push_back(dtype == DType::bf16 ? to_bf16(v).bits : to_f16(v).bits);
  return out;
}

class SumRows : public testing::TestWithParam<DType> {};

TEST_P(SumRows, EveryIsaGivesTheSumInTokenOrder) {
  constexpr std::int64_t kStride = 200;
  constexpr std::int64_t kTokens = 65;
  const std::vector<float> wide = normal(kStride * kTokens, 1);
  const std::vector<std::uint16_t> half = narrow(wide, GetParam());
  const void* data = GetParam() == DType::f32 ? static_cast<const void*>(wide.data()) : half.data();
  for (const std::int64_t D : {1, 7, 8, 15, 16, 40, 72, 128, 144, 200}) {
    std::vector<float> expected(static_cast<std::size_t>(D), 0.0F);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t d = 0; d < D; ++d) {
        const auto i = static_cast<std::size_t>(t * kStride + d);
        expected[static_cast<std::size_t>(d)] += GetParam() == DType::f32    ? wide[i]
                                                 : GetParam() == DType::bf16 ? to_f32(bf16{half[i]})
                                                                             : to_f32(f16{half[i]});
      }
    }
    for (const BlockKernels* kernels : available_block_kernels()) {
      std::vector<float> sum(static_cast<std::size_t>(D) + 1, -7.0F);
      kernels->sum_rows(data, GetParam(), kStride, kTokens, D, sum.data());
      EXPECT_EQ(sum.back(), -7.0F) << kernels->isa << " wrote past D=" << D;
      sum.pop_back();
      EXPECT_EQ(sum, expected) << kernels->isa << " D=" << D;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Dtypes, SumRows, testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

TEST(BlockKernels, ScoresAreScaledDotProductsPlusBias) {
  constexpr std::int64_t kRows = 6;
  constexpr std::int64_t kD = 20;
  const std::int64_t ld = padded(33);
  const std::vector<float> q = normal(kRows * kD, 2);
  const std::vector<float> kt = normal(static_cast<std::size_t>(kD * ld), 3);
  const std::vector<float> bias = normal(static_cast<std::size_t>(ld), 4);
  std::vector<float> expected(static_cast<std::size_t>(kRows * ld));
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t j = 0; j < ld; ++j) {
      float dot = 0.0F;
      for (std::int64_t d = 0; d < kD; ++d) dot += q[static_cast<std::size_t>(r * kD + d)] * kt[static_cast<std::size_t>(d * ld + j)];
      expected[static_cast<std::size_t>(r * ld + j)] = dot * 0.25F + bias[static_cast<std::size_t>(j)];
    }
  }
  for (const BlockKernels* kernels : available_block_kernels()) {
    std::vector<float> out(expected.size());
    kernels->scores(q.data(), kRows, kt.data(), ld, kD, 0.25F, bias.data(), out.data());
    EXPECT_EQ(out, expected) << kernels->isa;
  }
}

TEST(BlockKernels, ExpIsAccurateAndTheSameOnEveryIsa) {
  std::vector<float> x;
  for (int i = 0; i < 4800; ++i) x.push_back(-0.025F * static_cast<float>(i));
  x[100] = -std::numeric_limits<float>::max();
  std::vector<std::vector<float>> results;
  std::vector<float> sums;
  for (const BlockKernels* kernels : available_block_kernels()) {
    std::vector<float> e = x;
    sums.push_back(kernels->exp_sum(e.data(), static_cast<std::int64_t>(e.size()), 0.0F));
    results.push_back(e);
    EXPECT_EQ(kernels->max(x.data() + 160, 320), x[160]);
  }
  double total = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    total += exact;
    EXPECT_NEAR(results[0][i], exact, 2e-7 * exact + 3e-45) << x[i];
  }
  EXPECT_NEAR(sums[0], total, 1e-5 * total);
  for (std::size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(results[i], results[0]);
    EXPECT_EQ(sums[i], sums[0]);
  }
}

TEST(BlockKernels, NonFiniteLogitsStayVisible) {
  for (const BlockKernels* kernels : available_block_kernels()) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> x(32, 0.0F);
      x[5] = bad;
      EXPECT_TRUE(std::isnan(kernels->exp_sum(x.data(), 32, 0.0F))) << kernels->isa;
      EXPECT_TRUE(std::isnan(x[5])) << kernels->isa;
      EXPECT_EQ(x[6], 1.0F);
    }
  }
}

TEST(BlockMeans, RaggedLengthsStridesAndLayouts) {
  constexpr std::int64_t B = 2, S = 100, H = 3, D = 24;
  const std::vector<float> data = normal(static_cast<std::size_t>(B * S * H * D * 2), 5);
  const std::int64_t shape[] = {B, S, H, D};
  const std::int64_t strides[] = {H * S * D * 2, D * 2, S * D * 2, 1};  // [B,H,S,2D] seen as [B,S,H,D]
  const TensorView x = TensorView::strided(const_cast<float*>(data.data()), DType::f32, shape, strides, 4);
  const std::int64_t lengths[] = {100, 70};
  Workspace ws;
  const float* rows = block_means(x, 32, lengths, MeanLayout::rows, ws);
  const float* columns = block_means(x, 32, lengths, MeanLayout::columns, ws);
  const std::int64_t ld = padded(4);
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t h = 0; h < H; ++h) {
      for (std::int64_t g = 0; g < 4; ++g) {
        const std::int64_t end = std::min<std::int64_t>(g * 32 + 32, lengths[b]);
        for (std::int64_t d = 0; d < D; ++d) {
          float sum = 0.0F;
          for (std::int64_t s = g * 32; s < end; ++s)
            sum += data[static_cast<std::size_t>(b * strides[0] + s * strides[1] + h * strides[2] + d)];
          const float expected = end > g * 32 ? sum / static_cast<float>(end - g * 32) : 0.0F;
          EXPECT_EQ(rows[((b * H + h) * 4 + g) * D + d], expected);
          EXPECT_EQ(columns[((b * H + h) * D + d) * ld + g], expected);
        }
      }
      for (std::int64_t d = 0; d < D; ++d) EXPECT_EQ(columns[((b * H + h) * D + d) * ld + 4], 0.0F);
    }
  }
}

}  // namespace
}  // namespace winnow
