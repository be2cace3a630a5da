// What every selector shares about its inputs: geometry and the logits' scale.
#include "select/spec.h"

#include <cmath>
#include <string>

#include "core/overlap.h"
#include "core/text.h"
#include "winnow/error.h"

namespace winnow {

namespace {

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

void check(const TensorView& x, const char* name) {
  if (x.rank != 4 || !is_float(x.dtype)) {
    throw Error("select", std::string(name) + ": expected [B,S,H,D] in f32, f16 or bf16, got " + x.describe());
  }
  if (x.size(3) < 1) throw Error("select", std::string(name) + ": expected a head dim of at least 1, got " + x.describe());
  if (x.device != Device::cpu) throw Error("select", std::string(name) + ": expected CPU memory");
  if (x.size(3) > 1 && x.stride(3) != 1) {
    throw Error("select", std::string(name) + ": expected contiguous D, got stride " + std::to_string(x.stride(3)));
  }
  if (!is_addressable(x))
    throw Error("select", std::string(name) + ": expected strides that keep elements within 2^62 bytes, got larger ones");
  if (x.data == nullptr && x.numel() > 0) throw Error("select", std::string(name) + ": expected data, got null");
}

void check_keep(std::span<const float> keep, const PlanGeometry& geometry) {
  const auto n = static_cast<std::int64_t>(keep.size());
  if (n != 0 && n != geometry.H && n != geometry.rows()) {
    throw Error("select", "keep: expected " + std::to_string(geometry.H) + " heads or " + std::to_string(geometry.rows()) + " rows, got " +
                              std::to_string(n));
  }
  for (const float share : keep) {
    if (!(share > 0.0F && share <= 1.0F)) throw Error("select", "keep: expected numbers in (0,1], got " + short_number(share));
  }
}

}  // namespace

void check_cdf_or_density(float cdf, float density) {
  const auto in_range = [](float x) { return x > 0.0F && x <= 1.0F; };
  if ((in_range(cdf) && density == 0.0F) || (in_range(density) && cdf == 0.0F)) return;
  throw Error("config", "cdf, density: expected exactly one of them in (0,1] and the other unset, got cdf " + short_number(cdf) +
                            " and density " + short_number(density));
}

PlanGeometry plan_geometry(const TensorView& q, const TensorView& k, const PlanSpec& spec) {
  check(q, "q");
  check(k, "k");
  if (k.size(0) != q.size(0) || k.size(3) != q.size(3) || (q.numel() > 0 && (k.size(2) == 0 || q.size(2) % k.size(2) != 0))) {
    throw Error("select", "k: expected [" + std::to_string(q.size(0)) + ",Sk,a divisor of " + std::to_string(q.size(2)) + "," +
                              std::to_string(q.size(3)) + "], got " + k.describe());
  }
  PlanGeometry geometry;
  geometry.B = q.size(0);
  geometry.H = q.size(2);
  geometry.Sq = q.size(1);
  geometry.Sk = k.size(1);
  geometry.tile_q = spec.tile_q;
  geometry.tile_k = spec.tile_k;
  geometry.mean_group = spec.mean_group;
  geometry.key_lengths = spec.key_lengths;
  geometry.query_layout = spec.query_layout;
  geometry.key_layout = spec.key_layout;
  geometry.validate();
  if (spec.granularity < 1) throw Error("select", "granularity: expected >= 1, got " + std::to_string(spec.granularity));
  check_keep(spec.keep, geometry);
  if (std::isinf(spec.scale)) throw Error("select", "scale: expected a finite number, got " + short_number(spec.scale));
  return geometry;
}

float logit_scale(float scale, std::int64_t head_dim) { return std::isnan(scale) ? 1.0F / std::sqrt(static_cast<float>(head_dim)) : scale; }

}  // namespace winnow
