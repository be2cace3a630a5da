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
      kernels->sum_rows(data, GetParam(), kStride, nullptr, kTokens, D, sum.data());
      EXPECT_EQ(sum.back(), -7.0F) << kernels->isa << " wrote past D=" << D;
      sum.pop_back();
      EXPECT_EQ(sum, expected) << kernels->isa << " D=" << D;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Dtypes, SumRows, testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

TEST(BlockKernels, ScoresAreScaledDotProductsPlusBias) {
  constexpr std::int64_t kRows = 13;  // whole groups of 8 and 4 rows, and one more
  constexpr std::int64_t kD = 20;
  const std::int64_t ld = padded(33);
  const std::vector<float> q = normal(kRows * kD, 2);
  const std::vector<float> k = normal(static_cast<std::size_t>(kD * ld), 3);
  const std::vector<float> bias = normal(static_cast<std::size_t>(ld), 4);
  std::vector<float> expected(static_cast<std::size_t>(kRows * ld));
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t j = 0; j < ld; ++j) {
      float dot = 0.0F;
      for (std::int64_t d = 0; d < kD; ++d) {
        dot = std::fma(q[static_cast<std::size_t>(r * kD + d)], k[static_cast<std::size_t>(in_panels(j, d, kD))], dot);
      }
      expected[static_cast<std::size_t>(r * ld + j)] = dot * 0.25F + bias[static_cast<std::size_t>(j)];
    }
  }
  for (const BlockKernels* kernels : available_block_kernels()) {
    std::vector<float> out(expected.size());
    kernels->scores(q.data(), kRows, k.data(), ld, ld, kD, 0.25F, bias.data(), out.data());
    EXPECT_EQ(out, expected) << kernels->isa;
    std::vector<float> some(expected.size(), 7.0F);  // the second half of the columns alone
    kernels->scores(q.data(), kRows, k.data() + 32 * kD, ld - 32, ld, kD, 0.25F, bias.data() + 32, some.data() + 32);
    for (std::size_t i = 0; i < some.size(); ++i) {
      ASSERT_EQ(some[i], i % static_cast<std::size_t>(ld) < 32 ? 7.0F : expected[i]) << kernels->isa;
    }
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

TEST(BlockKernels, LogSumExpIsAccurateAndTheSameOnEveryIsa) {
  constexpr std::int64_t kLd = 64;
  for (const std::int64_t rows : {1, 2, 16, 64, 256}) {
    std::vector<float> x = normal(static_cast<std::size_t>(rows * kLd), 7);
    for (float& v : x) v *= rows == 2 ? 300.0F : 5.0F;
    std::fill_n(x.begin(), 1, -2e30F);  // an invalid cell beside valid ones
    std::vector<float> first;
    for (const BlockKernels* kernels : available_block_kernels()) {
      std::vector<float> out(kLd);
      kernels->log_sum_exp(x.data(), rows, kLd, kLd, out.data());
      if (first.empty()) first = out;
      EXPECT_EQ(out, first) << kernels->isa;
      std::vector<float> some(kLd, 7.0F);
      kernels->log_sum_exp(x.data() + 16, rows, 16, kLd, some.data() + 16);
      for (std::size_t j = 0; j < kLd; ++j) ASSERT_EQ(some[j], j / 16 == 1 ? first[j] : 7.0F) << kernels->isa;
    }
    for (std::size_t j = 0; j < kLd; ++j) {
      double largest = -1e300;
      double sum = 0.0;
      for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) largest = std::max(largest, static_cast<double>(x[r * kLd + j]));
      for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) sum += std::exp(static_cast<double>(x[r * kLd + j]) - largest);
      const double exact = largest + std::log(sum);
      EXPECT_NEAR(first[j], exact, 2e-6 + 1e-7 * std::abs(exact)) << rows;
    }
  }
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const BlockKernels* kernels : available_block_kernels()) {
      std::vector<float> x(64, 1.0F);
      x[33] = bad;
      std::vector<float> out(32);
      kernels->log_sum_exp(x.data(), 2, 32, 32, out.data());
      EXPECT_TRUE(std::isnan(out[1])) << kernels->isa;
      EXPECT_NEAR(out[2], 1.0F + std::log(2.0F), 1e-6F);
    }
  }
}

TEST(BlockKernels, SumsOfDirectionsAreTheSameOnEveryIsa) {
  constexpr std::int64_t kStride = 130;
  constexpr std::int64_t kTokens = 9;
  std::vector<float> x = normal(kStride * kTokens, 11);
  std::fill_n(x.begin() + 2 * kStride, kStride, 0.25F);  // equals the shift: no direction
  const std::vector<std::uint16_t> half = narrow(x, DType::bf16);
  for (const std::int64_t D : {1, 15, 16, 40, 64, 72, 90, 128, 130}) {  // 64 and 128 have code of their own
    const std::vector<float> shift(144, 0.25F);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const void* data = dtype == DType::f32 ? static_cast<const void*>(x.data()) : half.data();
      std::vector<double> exact(static_cast<std::size_t>(D), 0.0);
      for (std::size_t t = 0; t < kTokens; ++t) {
        const auto value = [&](std::size_t d) {
          return (dtype == DType::f32 ? x[t * kStride + d] : to_f32(bf16{half[t * kStride + d]})) - 0.25;
        };
        double square = 0.0;
        for (std::size_t d = 0; d < exact.size(); ++d) square += value(d) * value(d);
        for (std::size_t d = 0; d < exact.size() && square > 0.0; ++d) exact[d] += value(d) / std::sqrt(square);
      }
      std::vector<float> first;
      for (const BlockKernels* kernels : available_block_kernels()) {
        std::vector<float> row(144);
        std::vector<float> out(static_cast<std::size_t>(D) + 1, -7.0F);
        kernels->sum_directions(data, dtype, kStride, nullptr, kTokens, D, shift.data(), row.data(), out.data());
        if (first.empty()) first = out;
        EXPECT_EQ(out, first) << kernels->isa << " D=" << D;
        EXPECT_EQ(out.back(), -7.0F) << "wrote past D";
      }
      for (std::size_t d = 0; d < exact.size(); ++d) EXPECT_NEAR(first[d], exact[d], 1e-5) << D;
    }
  }
}

TEST(BlockMeans, PanelsHoldTheSameMeans) {
  constexpr std::int64_t S = 150, H = 2, D = 8;
  const std::vector<float> data = normal(static_cast<std::size_t>(S * H * D), 5);
  const TensorView x(data.data(), DType::f32, {1, S, H, D});
  Workspace ws;
  const float* plain = block_means(x, {.tile = 16}, MeanLayout::rows, ws);  // 10 cells: 3 tiles of 4
  const float* cells = block_means(x, {.tile = 64, .cells = 4}, MeanLayout::panels, ws);
  const std::int64_t ld = padded(3);
  for (std::int64_t h = 0; h < H; ++h) {
    for (std::int64_t d = 0; d < D; ++d) {
      for (std::int64_t c = 0; c < 4; ++c) {
        for (std::int64_t j = 0; j < ld; ++j) {
          const std::int64_t g = j * 4 + c;
          EXPECT_EQ(cells[h * 4 * ld * D + in_panels(c * ld + j, d, D)], g < 10 ? plain[(h * 10 + g) * D + d] : 0.0F) << c << " " << j;
        }
      }
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
  const float* rows = block_means(x, {.tile = 32, .lengths = lengths}, MeanLayout::rows, ws);
  const float* panels = block_means(x, {.tile = 32, .lengths = lengths}, MeanLayout::panels, ws);
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
          EXPECT_EQ(panels[(b * H + h) * ld * D + in_panels(g, d, D)], expected);
        }
      }
      for (std::int64_t d = 0; d < D; ++d) EXPECT_EQ(panels[(b * H + h) * ld * D + in_panels(4, d, D)], 0.0F);
    }
  }
}

TEST(BlockMeans, TilesOfALayoutAndTheirCells) {
  constexpr std::int64_t S = 40, D = 9;
  const std::vector<float> data = normal(static_cast<std::size_t>(S * D), 6);
  const TensorView x(const_cast<float*>(data.data()), DType::f32, {1, S, 1, D});
  TokenLayout::Parts parts{.num_tokens = S, .tile_begin = {0, 8, 13}, .document_begin = {0, 2}, .exact = {0, 0}};
  for (std::int32_t i = 0; i < 13; ++i) parts.tokens.push_back((i * 7 + 3) % 40);
  const TokenLayout layout(parts);
  Workspace ws;
  const float* means = block_means(x, {.tile = 8, .cells = 2, .layout = &layout}, MeanLayout::rows, ws);
  const std::int32_t begin[] = {0, 4, 8, 12, 13};
  for (std::size_t block = 0; block < 4; ++block) {
    for (std::int64_t d = 0; d < D; ++d) {
      float sum = 0.0F;
      for (std::int32_t i = begin[block]; i < begin[block + 1]; ++i) {
        sum += data[static_cast<std::size_t>(parts.tokens[static_cast<std::size_t>(i)] * D + d)];
      }
      EXPECT_EQ(means[static_cast<std::int64_t>(block) * D + d], sum / static_cast<float>(begin[block + 1] - begin[block]));
    }
  }
}

}  // namespace
}  // namespace winnow
