// Row kernels of every instruction set, linear layers and rotary tables against plain loops in f64.
#include "dit/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "core/numeric.h"
#include "core/random.h"
#include "core/safetensors.h"
#include "dit/linear.h"
#include "dit/rope.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow::dit {
namespace {

struct Case {
  Isa isa;
  DType dtype;
};
class RowOps : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (kernels_for(GetParam().isa) == nullptr) GTEST_SKIP() << "not on this processor";
    ops_ = Ops(*kernels_for(GetParam().isa));
  }
  DType dtype() const { return GetParam().dtype; }
  // Largest error of one rounding to T plus f32 arithmetic, relative to the values' size.
  double tolerance() const { return dtype() == DType::bf16 ? 0x1p-8 : 3e-6; }

  // Random values of T.
  Tensor random(std::int64_t rows, std::int64_t width, std::uint64_t seed) const {
    Tensor wide(DType::f32, {rows, width});
    fill_normal({wide.as<float>(), static_cast<std::size_t>(rows * width)}, seed);
    for (std::int64_t i = 0; i < rows * width; ++i) wide.as<float>()[i] = 1.5F * wide.as<float>()[i] + 0.3F;
    Tensor narrow(dtype(), {rows, width});
    convert(wide, narrow);
    return narrow;
  }
  static Tensor copy(const Tensor& t) {
    Tensor out(t.view().dtype, {t.view().size(0), t.view().size(1)});
    convert(t, out);
    return out;
  }
  static std::vector<double> values(const TensorView& view) {
    Tensor wide(DType::f64, view.shape.data(), view.rank);
    convert(view, wide);
    return {wide.as<double>(), wide.as<double>() + wide.numel()};
  }
  void expect_near(const Tensor& result, const std::vector<double>& expected) const {
    const std::vector<double> ours = values(result);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      ASSERT_NEAR(ours[i], expected[i], tolerance() * std::max(1.0, std::abs(expected[i]))) << ops_.isa() << " " << i;
    }
  }
  double to_t(double x) const { return dtype() == DType::bf16 ? static_cast<double>(round_bf16(static_cast<float>(x))) : x; }

  Ops ops_{scalar_kernels()};
};

std::string case_name(const testing::TestParamInfo<Case>& test) {
  const char* isas[] = {"scalar", "avx2", "avx512", "avx512_bf16"};
  return std::string(isas[static_cast<int>(test.param.isa)]) + "_" + dtype_name(test.param.dtype);
}
INSTANTIATE_TEST_SUITE_P(EveryIsa, RowOps,
                         testing::Values(Case{Isa::scalar, DType::f32}, Case{Isa::scalar, DType::bf16}, Case{Isa::avx2, DType::f32},
                                         Case{Isa::avx2, DType::bf16}, Case{Isa::avx512, DType::f32}, Case{Isa::avx512, DType::bf16},
                                         Case{Isa::avx512_bf16, DType::bf16}),
                         case_name);

// Widths with and without a ragged end for 8 and 16 lanes.
constexpr std::int64_t kWidths[] = {24, 36, 256, 1540};

TEST_P(RowOps, LayerNormWithPerRowTables) {
  for (const std::int64_t width : kWidths) {
    const Tensor x = random(5, width, 1);
    Tensor tables(DType::f32, {4, width});
    fill_normal({tables.as<float>(), static_cast<std::size_t>(4 * width)}, 2);
    const std::int32_t index[] = {0, 1, 1, 0, 1};
    std::vector<double> expected;
    const std::vector<double> in = values(x);
    for (std::int64_t r = 0; r < 5; ++r) {
      double mean = 0.0;
      double variance = 0.0;
      for (std::int64_t d = 0; d < width; ++d) mean += in[static_cast<std::size_t>(r * width + d)] / static_cast<double>(width);
      for (std::int64_t d = 0; d < width; ++d)
        variance += std::pow(in[static_cast<std::size_t>(r * width + d)] - mean, 2) / static_cast<double>(width);
      for (std::int64_t d = 0; d < width; ++d) {
        const std::int64_t row = index[r] * 2;
        expected.push_back((in[static_cast<std::size_t>(r * width + d)] - mean) / std::sqrt(variance + 1e-6) *
                               static_cast<double>(tables.as<float>()[row * width + d]) +
                           static_cast<double>(tables.as<float>()[(row + 1) * width + d]));
      }
    }
    Tensor y(dtype(), {5, width});
    ops_.layer_norm(x, y, {tables.as<float>(), 2 * width, index}, {tables.as<float>() + width, 2 * width, index}, 1e-6F);
    expect_near(y, expected);
    Tensor in_place = copy(x);
    ops_.layer_norm(in_place, in_place, {tables.as<float>(), 2 * width, index}, {tables.as<float>() + width, 2 * width, index}, 1e-6F);
    expect_near(in_place, expected);
  }
}

// The sum as gated_add() makes it, the norm as layer_norm() does: bit by bit.
TEST_P(RowOps, AddNormIsItsParts) {
  for (const std::int64_t width : kWidths) {
    const Tensor x = random(7, width, 1);
    const Tensor y = random(7, width, 2);
    Tensor tables(DType::f32, {6, width});
    fill_normal({tables.as<float>(), static_cast<std::size_t>(6 * width)}, 3);
    std::fill_n(tables.as<float>() + 4 * width, width, 1.0F);
    const std::int32_t index[] = {0, 1, 1, 0, 1, 0, 0};
    const RowTable scale{tables.as<float>(), 2 * width, index};
    const RowTable shift{tables.as<float>() + width, 2 * width, index};
    const RowTable ones{tables.as<float>() + 4 * width, 0, nullptr};
    for (const RowTable& gate : {RowTable(), RowTable{tables.as<float>() + width, width, index}}) {
      Tensor sum = copy(x);
      Tensor norm(dtype(), {7, width});
      ops_.gated_add(sum, y, gate.table == nullptr ? ones : gate);
      ops_.layer_norm(sum, norm, scale, shift, 1e-6F);
      Tensor sum_too = copy(x);
      Tensor norm_too = copy(y);
      ops_.add_norm(sum_too, norm_too, gate, scale, shift, 1e-6F);
      EXPECT_EQ(std::memcmp(sum.view().data, sum_too.view().data, sum.bytes()), 0) << width;
      EXPECT_EQ(std::memcmp(norm.view().data, norm_too.view().data, norm.bytes()), 0) << width;
    }
  }
}

TEST_P(RowOps, NormAndRope) {
  TransformerConfig config;
  for (const auto& [heads, head_dim] : {std::pair<std::int64_t, std::int64_t>{2, 12}, {3, 20}, {2, 128}}) {
    config.num_heads = heads;
    config.head_dim = head_dim;
    const std::int64_t width = config.width();
    const Tensor rope = make_rope(config, {2, 2, 3});
    const Tensor x = random(12, width, 3);
    Tensor weight(DType::f32, {width});
    fill_normal({weight.as<float>(), static_cast<std::size_t>(width)}, 4);
    const std::vector<double> in = values(x);
    std::vector<double> expected;
    const RopeSplit split = rope_split(head_dim);
    EXPECT_EQ(split.frames + split.height + split.width, head_dim);
    for (std::int64_t r = 0; r < 12; ++r) {
      double squares = 0.0;
      for (std::int64_t d = 0; d < width; ++d) squares += std::pow(in[static_cast<std::size_t>(r * width + d)], 2);
      std::vector<double> row;
      for (std::int64_t d = 0; d < width; ++d) {
        row.push_back(to_t(in[static_cast<std::size_t>(r * width + d)] / std::sqrt(squares / static_cast<double>(width) + 1e-6) *
                           static_cast<double>(weight.as<float>()[d])));
      }
      for (std::int64_t d = 0; d < width; d += 2) {
        std::int64_t place = d % head_dim;  // within its axis
        std::int64_t axis_dim = split.frames;
        std::int64_t position = r / 6;
        if (place >= split.frames + split.height) {
          place -= split.frames + split.height;
          axis_dim = split.width;
          position = r % 3;
        } else if (place >= split.frames) {
          place -= split.frames;
          axis_dim = split.height;
          position = r / 3 % 2;
        }
        const double angle = static_cast<double>(position) / std::pow(10000.0, static_cast<double>(place) / static_cast<double>(axis_dim));
        const double even = row[static_cast<std::size_t>(d)];
        const double odd = row[static_cast<std::size_t>(d + 1)];
        expected.push_back(even * std::cos(angle) - odd * std::sin(angle));
        expected.push_back(even * std::sin(angle) + odd * std::cos(angle));
      }
    }
    Tensor y = copy(x);
    ops_.norm_rope(y, weight.as<float>(), rope.as<float>(), head_dim, 1e-6F);
    const std::vector<double> ours = values(y);
    for (std::size_t i = 0; i < ours.size(); ++i) {  // two roundings: a tie of the first may fall the other way
      ASSERT_NEAR(ours[i], expected[i], 2 * tolerance() * std::max(1.0, std::abs(expected[i]))) << ops_.isa() << " " << i;
    }
  }
}

TEST_P(RowOps, Elementwise) {
  for (const std::int64_t width : kWidths) {
    const Tensor x = random(3, width, 5);
    const Tensor y = random(3, width, 6);
    const std::vector<double> a = values(x);
    const std::vector<double> b = values(y);
    Tensor gate(DType::f32, {width});
    fill_normal({gate.as<float>(), static_cast<std::size_t>(width)}, 7);
    std::vector<double> gated;
    std::vector<double> gelu;
    std::vector<double> silu;
    std::vector<double> guided;
    for (std::size_t i = 0; i < a.size(); ++i) {
      gated.push_back(a[i] + b[i] * static_cast<double>(gate.as<float>()[static_cast<std::int64_t>(i) % width]));
      gelu.push_back(0.5 * a[i] * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (a[i] + 0.044715 * a[i] * a[i] * a[i]))));
      silu.push_back(a[i] / (1.0 + std::exp(-a[i])));
      guided.push_back(b[i] + to_t(3.5 * to_t(a[i] - b[i])));
    }
    Tensor r = copy(x);
    ops_.gated_add(r, y, {gate.as<float>(), 0, nullptr});
    expect_near(r, gated);
    r = copy(x);
    ops_.gelu_tanh(r);
    expect_near(r, gelu);
    ops_.silu(x, r);
    expect_near(r, silu);
    Tensor g(DType::f32, {3, width});
    ops_.guide(x, y, g, 3.5F);
    expect_near(g, guided);
  }
}

TEST_P(RowOps, ActivationsAtTheirEnds) {
  const float inputs[] = {-1e30F, -200.0F, -20.0F, -0.0F, 0.0F, 20.0F, 200.0F, 1e30F, std::numeric_limits<float>::quiet_NaN()};
  for (const bool silu : {false, true}) {
    Tensor x(dtype(), {1, 9});
    convert(TensorView(inputs, DType::f32, {1, 9}), x);
    if (silu) {
      ops_.silu(x, x);
    } else {
      ops_.gelu_tanh(x);
    }
    const std::vector<double> y = values(x);
    for (const std::size_t i : {1U, 2U, 3U, 4U}) EXPECT_NEAR(y[i], 0.0, 1e-7) << silu;
    EXPECT_EQ(y[6], 200.0);
    EXPECT_NEAR(y[7], 1e30, 1e28);
    EXPECT_TRUE(std::isnan(y[8]));
  }
}

class Linears : public testing::TestWithParam<std::pair<DType, bool>> {};  // compute, emulated
INSTANTIATE_TEST_SUITE_P(All, Linears,
                         testing::Values(std::pair(DType::f32, false), std::pair(DType::bf16, false), std::pair(DType::bf16, true)),
                         [](const auto& test) {
                           return std::string(dtype_name(test.param.first)) + (test.param.second ? "_emulated" : "");
                         });

Tensor random_of(DType dtype, std::int64_t rows, std::int64_t width, std::uint64_t seed, float scale) {
  Tensor wide(DType::f32, {rows, width});
  fill_normal({wide.as<float>(), static_cast<std::size_t>(rows * width)}, seed);
  for (std::int64_t i = 0; i < rows * width; ++i) wide.as<float>()[i] *= scale;
  Tensor narrow(dtype, {rows, width});
  convert(wide, narrow);
  return narrow;
}

TEST_P(Linears, MatchesF64AndDoesNotDependOnThreads) {
  const auto [dtype, emulated] = GetParam();
  LinearContext context(emulated);
  Workspace ws;
  for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{32, 24}, {17, 5}, {256, 768}}) {
    const Tensor weight = random_of(DType::f32, out, in, 1, 0.1F);
    const Tensor bias = random_of(DType::f32, 1, out, 2, 1.0F);
    const Linear linear(context, weight, bias.view().reshape({out}), dtype);
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{36}, std::int64_t{128}, std::int64_t{300}}) {
      const Tensor x = random_of(dtype, rows, in, 3, 1.0F);
      Tensor y(dtype, {rows, out});
      linear.run(x, y, ws);
      const auto of_t = [dtype = dtype](float v) { return static_cast<double>(dtype == DType::bf16 ? round_bf16(v) : v); };
      const auto element = [](const Tensor& t, std::int64_t i) {
        return t.view().dtype == DType::bf16 ? static_cast<double>(to_f32(t.as<bf16>()[i])) : static_cast<double>(t.as<float>()[i]);
      };
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t o = 0; o < out; ++o) {
          double sum = of_t(bias.as<float>()[o]);
          for (std::int64_t i = 0; i < in; ++i) sum += element(x, r * in + i) * of_t(weight.as<float>()[o * in + i]);
          const double tolerance = dtype == DType::bf16 ? 0x1p-8 : 1e-5;
          ASSERT_NEAR(element(y, r * out + o), sum, tolerance * std::max(1.0, std::abs(sum))) << rows << " " << r << " " << o;
        }
      }
      const int threads = num_threads();
      for (const int other : {1, 3}) {
        set_num_threads(other);
        Tensor z(dtype, {rows, out});
        linear.run(x, z, ws);
        EXPECT_EQ(std::memcmp(y.view().data, z.view().data, y.bytes()), 0) << other;
      }
      set_num_threads(threads);
    }
    EXPECT_THROW(linear.run(weight, weight, ws), Error);
  }
  EXPECT_GT(context.seconds(), 0.0);
}

TEST(Rope, RefusesLongAxes) {
  TransformerConfig config;
  config.rope_max_seq_len = 8;
  EXPECT_NO_THROW(make_rope(config, {8, 1, 1}));
  EXPECT_THROW(make_rope(config, {1, 9, 1}), Error);
  EXPECT_THROW(make_rope(config, {0, 1, 1}), Error);
  EXPECT_EQ(rope_split(128).frames, 44);
  EXPECT_EQ(rope_split(128).height, 42);
  EXPECT_EQ(rope_split(12).frames, 4);
}

}  // namespace
}  // namespace winnow::dit
