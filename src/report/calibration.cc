#include "report/calibration.h"

#include <algorithm>

#include "exec/registry.h"
#include "winnow/attend.h"
#include "winnow/error.h"
#include "winnow/workspace.h"

namespace winnow::report {

namespace {

// Repeats every attention call densely, for its gaps: twice the attention of a run, and no change to the engine.
class GapCollector {
 public:
  GapCollector(std::string executor, SkipSoftmaxRun& run) : executor_(std::move(executor)), run_(run) {}

  void operator()(const AttentionInputs& call) {
    if (call.context.role != AttentionRole::self) return;
    const Executor& executor = executor_for(executor_, call.q.dtype, call.q.size(3));
    note(executor, call);
    const Workspace::Scope scope(ws_);
    const TilePlan plan = TilePlan::dense(plan_geometry(call.q, call.k, {}), DenseReason::requested, &ws_);
    const PlanGeometry& g = plan.geometry();
    const std::int64_t rows = (g.Sq + executor.granule.rows - 1) / executor.granule.rows;
    const std::int64_t keys = (g.Sk + executor.granule.keys - 1) / executor.granule.keys;
    const auto count = static_cast<std::size_t>(g.B * g.H * rows * keys);
    auto* gaps = ws_.allocate<float>(count);
    const TensorView out(ws_.allocate<float>(static_cast<std::size_t>(call.q.numel())), DType::f32, {g.B, g.Sq, g.H, call.q.size(3)});
    AttendOptions options;
    options.executor = executor.name;
    options.skip_gaps_log2 = {gaps, DType::f32, {g.B, g.H, rows, keys}};
    attend(plan, call.q, call.k, call.v, out, options, ws_);
    const auto expert = static_cast<std::size_t>(call.context.expert);
    if (run_.gaps.size() <= expert) run_.gaps.resize(expert + 1);
    run_.gaps[expert].add({gaps, count}, g.Sk);
  }

 private:
  void note(const Executor& executor, const AttentionInputs& call) {
    if (executor.granule.rows == 0) throw Error("calibrate", std::string("executor: expected one with skip-softmax, got ") + executor.name);
    run_.calibration.executor = executor.name;
    run_.calibration.rows = executor.granule.rows;
    run_.calibration.keys = executor.granule.keys;
    run_.calibration.tokens = call.k.size(1);
  }

  std::string executor_;
  SkipSoftmaxRun& run_;
  Workspace ws_;
};

nlohmann::json measured_json(const SkipSoftmaxRun& run) {
  const SkipCalibration& c = run.calibration;
  nlohmann::json json = {{"prompts", run.prompts}, {"executor", c.executor}, {"rows", c.rows}, {"keys", c.keys}, {"tokens", c.tokens}};
  json["gaps"] = nlohmann::json::array();
  for (const SkipGaps& gaps : run.gaps) json["gaps"].push_back({{"granules", gaps.count()}, {"bins", gaps.bins()}});
  return json;
}

SkipSoftmaxRun measured_run(const Unfinished* unfinished) {
  SkipSoftmaxRun run;
  if (unfinished == nullptr || unfinished->taken().is_null()) return run;
  const nlohmann::json& json = unfinished->taken();
  try {
    json.at("prompts").get_to(run.prompts);
    json.at("executor").get_to(run.calibration.executor);
    json.at("rows").get_to(run.calibration.rows);
    json.at("keys").get_to(run.calibration.keys);
    json.at("tokens").get_to(run.calibration.tokens);
    for (const nlohmann::json& gaps : json.at("gaps")) {
      run.gaps.emplace_back().add_bins(gaps.at("bins").get<std::vector<std::int64_t>>(), gaps.at("granules").get<std::int64_t>());
    }
  } catch (const nlohmann::json::exception&) {
    unfinished->fail();
  }
  return run;
}

}  // namespace

SkipSoftmaxRun calibrate_skip_softmax(const Generate& generate, GenerateOptions options, const std::vector<std::string>& prompts,
                                      const std::string& model_directory, const Unfinished* unfinished) {
  SkipSoftmaxRun run = measured_run(unfinished);
  const std::string executor = options.attention.executor;
  options.attention = AttentionConfig();
  options.attention.executor = executor;
  GapCollector collector(executor, run);
  options.attention_observer = [&](const AttentionInputs& call) { collector(call); };
  run.calibration.model = model_fingerprint(model_directory);
  const std::size_t runs = options.prompt_embeds.empty() ? prompts.size() : 1;
  for (options.seed += run.prompts; run.prompts < runs; ++options.seed) {
    if (options.prompt_embeds.empty()) options.prompt = prompts[run.prompts];
    generate(options);
    ++run.prompts;
    if (unfinished != nullptr) unfinished->keep(measured_json(run));
  }
  for (const SkipGaps& gaps : run.gaps) {
    run.calibration.experts.emplace_back();
    if (gaps.count() == 0) continue;
    const SkipFit fit = gaps.fit();
    SkipCalibration::Expert expert;
    expert.a = fit.a;
    expert.b = fit.b;
    expert.r2 = fit.r2;
    expert.lowest = fit.lowest;
    expert.highest = fit.highest;
    run.calibration.experts.back() = expert;
  }
  if (run.gaps.empty()) throw Error("calibrate", "prompts: expected at least one, got none");
  return run;
}

}  // namespace winnow::report
