#include "run/static_plan.h"

#include <string>

#include "core/npy.h"
#include "core/safetensors.h"
#include "winnow/error.h"

namespace winnow {

namespace {

// A plan of Winnow's own says what it is.
bool is_plan_file(const std::string& path) { return !is_npy_file(path) && SafetensorsFile::open(path).metadata().contains("format"); }

void check_fits(const TilePlan& plan, const TensorView& q, const TensorView& k, const PlanSpec& spec) {
  const PlanGeometry& have = plan.geometry();
  const PlanGeometry want = plan_geometry(q, k, spec);
  if (have.B != want.B || have.H != want.H || have.Sq != want.Sq || have.Sk != want.Sk) {
    throw Error("session", "plan: expected one for q " + q.describe() + " and k " + k.describe() + ", got " + plan.describe());
  }
}

// Tiles that the mask's blocks consist of.
PlanGeometry mask_geometry(const BlockMask& mask, PlanGeometry geometry) {
  geometry.tile_q = mask_tile(mask.block_q, geometry.tile_q);
  geometry.tile_k = mask_tile(mask.block_k, geometry.tile_k);
  if (geometry.tile_k % geometry.mean_group != 0) geometry.mean_group = geometry.tile_k;
  return geometry;
}

}  // namespace

StaticPlan::StaticPlan(const FixedPlan& options) : path_(options.path), skipped_(options.means ? Skipped::mean : Skipped::drop) {
  if (!is_plan_file(options.path)) {
    mask_ = load_block_mask(options.path, options.block_q, options.block_k);
    return;
  }
  if (options.block_q != 0 || options.block_k != 0 || options.means) {
    throw Error("session", "plan: expected block_q, block_k and means with a block mask only, got them with the plan " + options.path);
  }
  plan_ = TilePlan::load(options.path);
}

const TilePlan& StaticPlan::fit(const TensorView& q, const TensorView& k, const PlanSpec& spec) {
  if (!mask_) {
    check_fits(*plan_, q, k, spec);
    return *plan_;
  }
  PlanGeometry geometry = mask_geometry(mask_->mask, plan_geometry(q, k, spec));
  if (!plan_ || !(plan_->geometry() == geometry)) plan_ = plan_from_block_mask(mask_->mask, std::move(geometry), skipped_);
  return *plan_;
}

double StaticPlan::density(std::int64_t tokens) {
  if (mask_) {
    const TensorView& keep = mask_->mask.keep;
    const PlanGeometry geometry = {
        .B = keep.rank > 3 ? keep.size(0) : 1, .H = keep.rank > 2 ? keep.size(keep.rank - 3) : 1, .Sq = tokens, .Sk = tokens};
    plan_ = plan_from_block_mask(mask_->mask, mask_geometry(mask_->mask, geometry), skipped_);
  }
  if (plan_->geometry().Sq != tokens || plan_->geometry().Sk != tokens) {
    throw Error("plan", path_ + ": expected a plan for " + std::to_string(tokens) + " tokens, got " + plan_->describe());
  }
  return plan_->density();
}

void check_protects(const TilePlan& plan, const PlanSpec& spec) {
  const auto same = [](const std::shared_ptr<const TokenLayout>& a, const std::shared_ptr<const TokenLayout>& b) {
    return a == b || (a && b && *a == *b);
  };
  if (!same(plan.geometry().query_layout, spec.query_layout) || !same(plan.geometry().key_layout, spec.key_layout)) {
    throw Error("session", "plan: expected one made for this sequence's spans, documents and token order, got " + plan.describe());
  }
}

}  // namespace winnow
