// The row kernels of ops.h, written once over the vector vocabulary. Included by ops_<isa>.cc inside its own namespace,
// after the vocabulary, round_to_bf16() and rotate_pairs() where there are lanes. Nothing here may use the standard library: see DESIGN.md,
// "Executors".

template <bool kBf16>
struct Io;
template <>
struct Io<false> {
  using Element = float;
  static V load(const Element* p) { return ::winnow::WINNOW_ISA::load(p); }
  static V load_n(const Element* p, int n) { return ::winnow::WINNOW_ISA::load_n(p, n); }
  static void store(Element* p, V a) { ::winnow::WINNOW_ISA::store(p, a); }
  static void store_n(Element* p, V a, int n) { ::winnow::WINNOW_ISA::store_n(p, a, n); }
  static V rounded(V a) { return a; }
};
template <>
struct Io<true> {
  using Element = std::uint16_t;
  static V load(const Element* p) { return load_bf16(p); }
  static V load_n(const Element* p, int n) { return load_bf16_n(p, n); }
  static void store(Element* p, V a) { store_bf16(p, a); }
  static void store_n(Element* p, V a, int n) { store_bf16_n(p, a, n); }
  static V rounded(V a) { return round_to_bf16(a); }
};

// Calls body(offset, load, store) over `width` elements: whole vectors, then the rest with masked forms.
template <class IoT, class Body>
inline void walk(std::int64_t width, Body&& body) {
  std::int64_t d = 0;
  for (; d + kLanes <= width; d += kLanes) body(d, kLanes);
  if (d < width) body(d, static_cast<int>(width - d));
}
template <class IoT>
inline V get(const typename IoT::Element* p, int n) {
  return n == kLanes ? IoT::load(p) : IoT::load_n(p, n);
}
template <class IoT>
inline void put(typename IoT::Element* p, V a, int n) {
  if (n == kLanes) {
    IoT::store(p, a);
  } else {
    IoT::store_n(p, a, n);
  }
}
using F32 = Io<false>;

// sum of term(d) over the whole vectors of a row; four sums hide the latency of the additions. `done` is where they end.
template <class Term>
inline V sum_vectors(std::int64_t width, std::int64_t& done, Term&& term) {
  V a = zero();
  V b = zero();
  V c = zero();
  V e = zero();
  std::int64_t d = 0;
  for (; d + 4 * kLanes <= width; d += 4 * kLanes) {
    a = term(a, d);
    b = term(b, d + kLanes);
    c = term(c, d + 2 * kLanes);
    e = term(e, d + 3 * kLanes);
  }
  for (; d + kLanes <= width; d += kLanes) a = term(a, d);
  done = d;
  return add(add(a, b), add(c, e));
}

inline const float* row_of(const RowTable& t, std::int64_t row) { return t.index == nullptr ? t.table : t.table + t.index[row] * t.stride; }

// exp(x) = 2^n exp(r) with |r| <= ln(2)/2 and the Taylor series to r^7: about 2 ulp; the remainder is below 1e-8.
// x is limited to [-87, 88]: enough for the sigmoid, whose ends are then 0 and 1 to f32. NaN stays NaN.
inline V exp_limited(V x) {
  x = max(set(-87.0F), min(set(88.0F), x));
  const V n = round(mul(x, set(1.44269504F)));
  V r = fma(n, set(-0.693145752F), x);  // ln 2 in two parts, the first exact in 16 bits
  r = fma(n, set(-1.42860677e-6F), r);
  V p = fma(set(1.0F / 5040.0F), r, set(1.0F / 720.0F));
  p = fma(p, r, set(1.0F / 120.0F));
  p = fma(p, r, set(1.0F / 24.0F));
  p = fma(p, r, set(1.0F / 6.0F));
  p = fma(p, r, set(0.5F));
  p = fma(p, r, set(1.0F));
  p = fma(p, r, set(1.0F));
  return scale2(p, n);
}
// x / (1 + 2^t) for results that are rounded to bf16, whose half ulp is 2e-3: the minimax polynomial for 2^f, f in [0,1], is
// within 3e-6, and the reciprocal within 1e-7 after one step of Newton's method. A division would cost as much as all the rest.
inline V over_one_plus_exp2(V x, V t) {
  t = min(set(126.0F), t);  // 2^t + 1 and its reciprocal stay normal numbers
  const V f = fraction(t);
  V p = fma(set(0.0135341679F), f, set(0.0520114606F));
  p = fma(p, f, set(0.241442757F));
  p = fma(p, f, set(0.693003834F));
  p = fma(p, f, set(1.00000259F));
  const V d = add(set(1.0F), scale2_floor(p, t));
  const V r = reciprocal_estimate(d);
  return mul(x, mul(r, sub(set(2.0F), mul(d, r))));
}

// sum of value(d, n) over a row, n elements at d.
template <class Value>
inline V sum_row(std::int64_t width, Value&& value) {
  std::int64_t done = 0;
  const V total = sum_vectors(width, done, [&](V t, std::int64_t d) { return add(t, value(d, kLanes)); });
  return done < width ? add(total, value(done, static_cast<int>(width - done))) : total;
}

// Rows that norms take together, stage by stage: the sums across lanes, divisions and roots of a single row are a chain of
// more than 100 cycles.
constexpr int kRowGroup = 4;

// Calls body(row, group) for groups of that many rows from `row` on.
template <class Body>
inline void over_groups(std::int64_t rows, Body&& body) {
  for (std::int64_t row = 0; row < rows; row += kRowGroup) body(row, static_cast<int>(rows - row < kRowGroup ? rows - row : kRowGroup));
}

// y = LN(x) * scale + shift for `group` rows from `row` on, given the sums of x.
template <class T>
inline void normalise_rows(const typename T::Element* x, const V* totals, typename T::Element* y, const RowTable& scale,
                           const RowTable& shift, std::int64_t width, float eps, std::int64_t row, int group) {
  float mean[kRowGroup];
  float inverse[kRowGroup];
  V squares[kRowGroup];
  for (int i = 0; i < group; ++i) mean[i] = sum(totals[i]) / static_cast<float>(width);
  std::int64_t done = 0;
  for (int i = 0; i < group; ++i) {
    squares[i] = sum_vectors(width, done, [&, in = x + i * width, m = set(mean[i])](V t, std::int64_t d) {
      const V c = sub(T::load(in + d), m);
      return fma(c, c, t);
    });
  }
  for (int i = 0; i < group; ++i) {
    float rest = 0.0F;  // masked lanes would count as -mean
    for (std::int64_t d = done; d < width; ++d) {
      const float c = sum(T::load_n(x + i * width + d, 1)) - mean[i];
      rest += c * c;
    }
    const float variance = (sum(squares[i]) + rest) / static_cast<float>(width);
    inverse[i] = 1.0F / __builtin_sqrtf(variance + eps);
  }
  for (int i = 0; i < group; ++i) {
    const float* a = row_of(scale, row + i);
    const float* b = row_of(shift, row + i);
    const V m = set(mean[i]);
    const V inv = set(inverse[i]);
    walk<T>(width, [&, in = x + i * width, out = y + i * width](std::int64_t d, int n) {
      const V normal = mul(sub(get<T>(in + d, n), m), inv);
      put<T>(out + d, add(mul(normal, get<F32>(a + d, n)), get<F32>(b + d, n)), n);
    });
  }
}

template <bool kBf16>
void layer_norm(const void* x, void* y, RowTable scale, RowTable shift, std::int64_t width, float eps, std::int64_t rows) {
  using T = Io<kBf16>;
  over_groups(rows, [&](std::int64_t row, int group) {
    const auto* in = static_cast<const typename T::Element*>(x) + row * width;
    V totals[kRowGroup];
    for (int i = 0; i < group; ++i) {
      totals[i] = sum_row(width, [p = in + i * width](std::int64_t d, int n) { return get<T>(p + d, n); });
    }
    normalise_rows<T>(in, totals, static_cast<typename T::Element*>(y) + row * width, scale, shift, width, eps, row, group);
  });
}

template <class T>
inline V gated_sum(const typename T::Element* x, const typename T::Element* y, const float* gate, int n) {
  const V step = get<T>(y, n);
  return add(get<T>(x, n), gate == nullptr ? step : mul(step, get<F32>(gate, n)));
}

template <bool kBf16>
void add_norm(void* x, void* y, RowTable gate, RowTable scale, RowTable shift, std::int64_t width, float eps, std::int64_t rows) {
  using T = Io<kBf16>;
  over_groups(rows, [&](std::int64_t row, int group) {
    auto* sums = static_cast<typename T::Element*>(x) + row * width;
    auto* out = static_cast<typename T::Element*>(y) + row * width;
    V totals[kRowGroup];
    for (int i = 0; i < group; ++i) {
      const float* g = gate.table == nullptr ? nullptr : row_of(gate, row + i);
      totals[i] = sum_row(width, [&, p = sums + i * width, step = out + i * width](std::int64_t d, int n) {
        const V value = gated_sum<T>(p + d, step + d, g == nullptr ? nullptr : g + d, n);
        put<T>(p + d, value, n);
        return T::rounded(value);
      });
    }
    normalise_rows<T>(sums, totals, out, scale, shift, width, eps, row, group);
  });
}

// One head: x inverse weight, rounded, then each pair turned by its angle.
template <class T>
inline void normalise_head(typename T::Element* x, const float* weight, const float* angles, std::int64_t head_dim, float inverse) {
  const auto normal = [=](std::int64_t d, int n) { return T::rounded(mul(mul(get<T>(x + d, n), set(inverse)), get<F32>(weight + d, n))); };
  if constexpr (kLanes == 1) {
    for (std::int64_t d = 0; d < head_dim; d += 2) {
      const V even = normal(d, 1);
      const V odd = normal(d + 1, 1);
      const V c = load(angles + d);
      const V s = load(angles + d + 1);
      T::store(x + d, sub(mul(even, c), mul(odd, s)));
      T::store(x + d + 1, add(mul(odd, c), mul(even, s)));
    }
  } else {
    walk<T>(head_dim, [&](std::int64_t d, int n) { put<T>(x + d, rotate_pairs(normal(d, n), get<F32>(angles + d, n)), n); });
  }
}

template <bool kBf16>
void norm_rope(void* x, const float* weight, const float* rope, std::int64_t width, std::int64_t head_dim, float eps, std::int64_t rows) {
  using T = Io<kBf16>;
  over_groups(rows, [&](std::int64_t row, int group) {
    auto* first = static_cast<typename T::Element*>(x) + row * width;
    V squares[kRowGroup];
    float inverse[kRowGroup];
    for (int i = 0; i < group; ++i) {
      const auto* p = first + i * width;
      std::int64_t done = 0;
      squares[i] = sum_vectors(width, done, [&](V t, std::int64_t d) {
        const V v = T::load(p + d);
        return fma(v, v, t);
      });
      if (done < width) {
        const V v = T::load_n(p + done, static_cast<int>(width - done));
        squares[i] = fma(v, v, squares[i]);
      }
    }
    for (int i = 0; i < group; ++i) inverse[i] = 1.0F / __builtin_sqrtf(sum(squares[i]) / static_cast<float>(width) + eps);
    for (int i = 0; i < group; ++i) {
      auto* p = first + i * width;
      if (rope == nullptr) {
        walk<T>(width,
                [&](std::int64_t d, int n) { put<T>(p + d, mul(mul(get<T>(p + d, n), set(inverse[i])), get<F32>(weight + d, n)), n); });
        continue;
      }
      const float* angles = rope + (row + i) * head_dim;
      for (std::int64_t d = 0; d < width; d += head_dim) normalise_head<T>(p + d, weight + d, angles, head_dim, inverse[i]);
    }
  });
}

template <bool kBf16>
void gated_add(void* x, const void* y, RowTable gate, std::int64_t width, std::int64_t rows) {
  using T = Io<kBf16>;
  for (std::int64_t row = 0; row < rows; ++row) {
    auto* out = static_cast<typename T::Element*>(x) + row * width;
    const auto* in = static_cast<const typename T::Element*>(y) + row * width;
    const float* g = row_of(gate, row);
    walk<T>(width, [&](std::int64_t d, int n) { put<T>(out + d, gated_sum<T>(out + d, in + d, g + d, n), n); });
  }
}

// gelu(x) = x/2 (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)
template <bool kBf16>
void gelu_tanh(void* x, std::int64_t count) {
  using T = Io<kBf16>;
  auto* p = static_cast<typename T::Element*>(x);
  walk<T>(count, [&](std::int64_t d, int n) {
    const V v = get<T>(p + d, n);
    if constexpr (kBf16) {
      constexpr float kScale = -2.0F * 0.7978845608F * 1.44269504F;
      const V t = mul(v, fma(mul(v, v), set(0.044715F * kScale), set(kScale)));
      put<T>(p + d, over_one_plus_exp2(v, t), n);
    } else {
      const V cubic = fma(mul(mul(v, v), v), set(0.044715F), v);
      put<T>(p + d, div(v, add(set(1.0F), exp_limited(mul(cubic, set(-1.5957691216F))))), n);
    }
  });
}

template <bool kBf16>
void silu(const void* x, void* y, std::int64_t count) {
  using T = Io<kBf16>;
  const auto* in = static_cast<const typename T::Element*>(x);
  auto* out = static_cast<typename T::Element*>(y);
  walk<T>(count, [&](std::int64_t d, int n) {
    const V v = get<T>(in + d, n);
    if constexpr (kBf16) {
      put<T>(out + d, over_one_plus_exp2(v, mul(v, set(-1.44269504F))), n);
    } else {
      put<T>(out + d, div(v, add(set(1.0F), exp_limited(sub(zero(), v)))), n);
    }
  });
}

template <bool kBf16>
void guide(const void* c, const void* u, float* out, float g, std::int64_t count) {
  using T = Io<kBf16>;
  const auto* pc = static_cast<const typename T::Element*>(c);
  const auto* pu = static_cast<const typename T::Element*>(u);
  walk<T>(count, [&](std::int64_t d, int n) {
    const V base = get<T>(pu + d, n);
    const V difference = T::rounded(sub(get<T>(pc + d, n), base));
    put<F32>(out + d, T::rounded(add(base, T::rounded(mul(set(g), difference)))), n);
  });
}

constexpr RowKernels make_kernels(const char* isa) {
  return {isa,
          {layer_norm<false>, layer_norm<true>},
          {add_norm<false>, add_norm<true>},
          {norm_rope<false>, norm_rope<true>},
          {gated_add<false>, gated_add<true>},
          {gelu_tanh<false>, gelu_tanh<true>},
          {silu<false>, silu<true>},
          {guide<false>, guide<true>}};
}
