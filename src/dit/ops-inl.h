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

// exp(x) = 2^n exp(r) with |r| <= ln(2)/2 and the Taylor series: to r^7 for f32 (about 2 ulp; the remainder is below 1e-8),
// to r^5 where the result is rounded to bf16 (remainder below 3e-6, bf16's half ulp is 2e-3).
// x is limited to [-87, 88]: enough for the sigmoid, whose ends are then 0 and 1 to f32. NaN stays NaN.
template <bool kBf16>
inline V exp_limited(V x) {
  x = max(set(-87.0F), min(set(88.0F), x));
  const V n = round(mul(x, set(1.44269504F)));
  V r = fma(n, set(-0.693145752F), x);  // ln 2 in two parts, the first exact in 16 bits
  r = fma(n, set(-1.42860677e-6F), r);
  V p = set(1.0F / 120.0F);
  if constexpr (!kBf16) {
    p = fma(set(1.0F / 5040.0F), r, set(1.0F / 720.0F));
    p = fma(p, r, set(1.0F / 120.0F));
  }
  p = fma(p, r, set(1.0F / 24.0F));
  p = fma(p, r, set(1.0F / 6.0F));
  p = fma(p, r, set(0.5F));
  p = fma(p, r, set(1.0F));
  p = fma(p, r, set(1.0F));
  return scale2(p, n);
}
template <bool kBf16>
inline V sigmoid_times(V x, V argument) {
  return div(x, add(set(1.0F), exp_limited<kBf16>(sub(zero(), argument))));
}

template <bool kBf16>
void layer_norm(const void* x, void* y, RowTable scale, RowTable shift, std::int64_t width, float eps, std::int64_t begin,
                std::int64_t end) {
  using T = Io<kBf16>;
  for (std::int64_t row = begin; row < end; ++row) {
    const auto* in = static_cast<const typename T::Element*>(x) + row * width;
    auto* out = static_cast<typename T::Element*>(y) + row * width;
    const float* a = row_of(scale, row);
    const float* b = row_of(shift, row);
    std::int64_t done = 0;
    V total = sum_vectors(width, done, [&](V t, std::int64_t d) { return add(t, T::load(in + d)); });
    if (done < width) total = add(total, T::load_n(in + done, static_cast<int>(width - done)));
    const float mean = sum(total) / static_cast<float>(width);
    const V squares = sum_vectors(width, done, [&](V t, std::int64_t d) {
      const V c = sub(T::load(in + d), set(mean));
      return fma(c, c, t);
    });
    float rest = 0.0F;  // masked lanes would count as -mean
    for (std::int64_t d = done; d < width; ++d) {
      const float c = sum(T::load_n(in + d, 1)) - mean;
      rest += c * c;
    }
    const float variance = (sum(squares) + rest) / static_cast<float>(width);
    const float inverse = 1.0F / __builtin_sqrtf(variance + eps);
    walk<T>(width, [&](std::int64_t e, int n) {
      const V normal = mul(sub(get<T>(in + e, n), set(mean)), set(inverse));
      put<T>(out + e, add(mul(normal, get<F32>(a + e, n)), get<F32>(b + e, n)), n);
    });
  }
}

template <bool kBf16>
void norm_rope(void* x, const float* weight, const float* rope, std::int64_t width, std::int64_t head_dim, float eps, std::int64_t begin,
               std::int64_t end) {
  using T = Io<kBf16>;
  for (std::int64_t row = begin; row < end; ++row) {
    auto* p = static_cast<typename T::Element*>(x) + row * width;
    std::int64_t done = 0;
    V squares = sum_vectors(width, done, [&](V t, std::int64_t d) {
      const V v = T::load(p + d);
      return fma(v, v, t);
    });
    if (done < width) {
      const V v = T::load_n(p + done, static_cast<int>(width - done));
      squares = fma(v, v, squares);
    }
    const float inverse = 1.0F / __builtin_sqrtf(sum(squares) / static_cast<float>(width) + eps);
    const auto normal = [&](std::int64_t d, int n) { return mul(mul(get<T>(p + d, n), set(inverse)), get<F32>(weight + d, n)); };
    if (rope == nullptr) {
      walk<T>(width, [&](std::int64_t d, int n) { put<T>(p + d, normal(d, n), n); });
      continue;
    }
    const float* angles = rope + row * head_dim;
    for (std::int64_t head = 0; head < width; head += head_dim) {
      if constexpr (kLanes == 1) {
        for (std::int64_t d = 0; d < head_dim; d += 2) {
          const V even = T::rounded(normal(head + d, 1));
          const V odd = T::rounded(normal(head + d + 1, 1));
          const V c = load(angles + d);
          const V s = load(angles + d + 1);
          T::store(p + head + d, sub(mul(even, c), mul(odd, s)));
          T::store(p + head + d + 1, add(mul(odd, c), mul(even, s)));
        }
      } else {
        walk<T>(head_dim, [&](std::int64_t d, int n) {
          put<T>(p + head + d, rotate_pairs(T::rounded(normal(head + d, n)), get<F32>(angles + d, n)), n);
        });
      }
    }
  }
}

template <bool kBf16>
void gated_add(void* x, const void* y, RowTable gate, std::int64_t width, std::int64_t begin, std::int64_t end) {
  using T = Io<kBf16>;
  for (std::int64_t row = begin; row < end; ++row) {
    auto* out = static_cast<typename T::Element*>(x) + row * width;
    const auto* in = static_cast<const typename T::Element*>(y) + row * width;
    const float* g = row_of(gate, row);
    walk<T>(width, [&](std::int64_t d, int n) { put<T>(out + d, add(get<T>(out + d, n), mul(get<T>(in + d, n), get<F32>(g + d, n))), n); });
  }
}

template <bool kBf16>
void add_rows(void* x, const void* y, std::int64_t begin, std::int64_t end) {
  using T = Io<kBf16>;
  auto* out = static_cast<typename T::Element*>(x) + begin;
  const auto* in = static_cast<const typename T::Element*>(y) + begin;
  walk<T>(end - begin, [&](std::int64_t d, int n) { put<T>(out + d, add(get<T>(out + d, n), get<T>(in + d, n)), n); });
}

// gelu(x) = x/2 (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)
template <bool kBf16>
void gelu_tanh(void* x, std::int64_t begin, std::int64_t end) {
  using T = Io<kBf16>;
  auto* p = static_cast<typename T::Element*>(x) + begin;
  walk<T>(end - begin, [&](std::int64_t d, int n) {
    const V v = get<T>(p + d, n);
    const V cubic = fma(mul(mul(v, v), v), set(0.044715F), v);
    put<T>(p + d, sigmoid_times<kBf16>(v, mul(cubic, set(1.5957691216F))), n);
  });
}

template <bool kBf16>
void silu(const void* x, void* y, std::int64_t begin, std::int64_t end) {
  using T = Io<kBf16>;
  const auto* in = static_cast<const typename T::Element*>(x) + begin;
  auto* out = static_cast<typename T::Element*>(y) + begin;
  walk<T>(end - begin, [&](std::int64_t d, int n) {
    const V v = get<T>(in + d, n);
    put<T>(out + d, sigmoid_times<kBf16>(v, v), n);
  });
}

template <bool kBf16>
void guide(const void* c, const void* u, float* out, float g, std::int64_t begin, std::int64_t end) {
  using T = Io<kBf16>;
  const auto* pc = static_cast<const typename T::Element*>(c) + begin;
  const auto* pu = static_cast<const typename T::Element*>(u) + begin;
  float* po = out + begin;
  walk<T>(end - begin, [&](std::int64_t d, int n) {
    const V base = get<T>(pu + d, n);
    const V difference = T::rounded(sub(get<T>(pc + d, n), base));
    put<F32>(po + d, T::rounded(add(base, T::rounded(mul(set(g), difference)))), n);
  });
}

constexpr RowKernels make_kernels(const char* isa) {
  return {isa,
          {layer_norm<false>, layer_norm<true>},
          {norm_rope<false>, norm_rope<true>},
          {gated_add<false>, gated_add<true>},
          {add_rows<false>, add_rows<true>},
          {gelu_tanh<false>, gelu_tanh<true>},
          {silu<false>, silu<true>},
          {guide<false>, guide<true>}};
}
