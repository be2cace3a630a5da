// What tests of selectors share: problems, and plain f64 definitions to compare with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "core/random.h"
#include "winnow/plan.h"
#include "winnow/tensor.h"

namespace winnow::testing_select {

struct Problem {
  Tensor q, k;
  Problem(std::int64_t B, std::int64_t Sq, std::int64_t Sk, std::int64_t H, std::int64_t Hk, std::int64_t D, std::uint64_t seed = 1)
      : q(DType::f32, {B, Sq, H, D}), k(DType::f32, {B, Sk, Hk, D}) {
    fill_normal({q.as<float>(), static_cast<std::size_t>(q.numel())}, seed, 0);
    fill_normal({k.as<float>(), static_cast<std::size_t>(k.numel())}, seed, 1);
    for (std::int64_t i = 0; i < q.numel(); ++i) q.as<float>()[i] *= 4.0F;  // peaked enough for masses to differ
  }
};

inline float at(const TensorView& x, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) {
  return x.as<float>()[b * x.stride(0) + s * x.stride(1) + h * x.stride(2) + d];
}

// The mean of tokens [first, end) of a head; empty if there are none.
inline std::vector<double> mean_of(const TensorView& x, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t end) {
  std::vector<double> m;
  if (first >= end) return m;
  m.assign(static_cast<std::size_t>(x.size(3)), 0.0);
  for (std::int64_t s = first; s < end; ++s)
    for (std::size_t d = 0; d < m.size(); ++d)
      m[d] += static_cast<double>(at(x, b, s, h, static_cast<std::int64_t>(d))) / static_cast<double>(end - first);
  return m;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Key tiles, largest score first.
inline std::vector<std::int32_t> by_score(const std::vector<double>& scores) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](std::int32_t x, std::int32_t y) { return scores[static_cast<std::size_t>(x)] > scores[static_cast<std::size_t>(y)]; });
  return order;
}

// Sets one option by its key, if the selector has it.
template <class Options, class Value>
void set_option(Options& options, std::string_view key, Value value) {
  Options::options(options, [&](const char* name, auto& option) {
    if constexpr (std::is_convertible_v<Value, std::decay_t<decltype(option)>>) {
      if (key == name) option = static_cast<std::decay_t<decltype(option)>>(value);
    }
  });
}

// The values of an f32 [B,S,H,D], stored as [B,H,S,D].
inline Tensor heads_first(const TensorView& x) {
  Tensor t(DType::f32, {x.size(0), x.size(2), x.size(1), x.size(3)});
  float* out = t.as<float>();
  for (std::int64_t b = 0; b < x.size(0); ++b)
    for (std::int64_t h = 0; h < x.size(2); ++h)
      for (std::int64_t s = 0; s < x.size(1); ++s)
        for (std::int64_t d = 0; d < x.size(3); ++d) *out++ = at(x, b, s, h, d);
  return t;
}
// A [B,H,S,D] tensor as a strided [B,S,H,D] view.
inline TensorView tokens_first(const Tensor& t) {
  const TensorView v = t.view();
  const std::int64_t shape[] = {v.size(0), v.size(2), v.size(1), v.size(3)};
  const std::int64_t strides[] = {v.stride(0), v.stride(2), v.stride(1), 1};
  return TensorView::strided(v.data, v.dtype, shape, strides, 4);
}

}  // namespace winnow::testing_select
