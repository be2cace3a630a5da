#include "report/magnitudes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "calib/skip_softmax.h"
#include "core/safetensors.h"
#include "winnow/error.h"
#include "winnow/tensor.h"

namespace winnow::report {

namespace {

// One run's ratios.
class RatioMeter {
 public:
  void operator()(const HiddenStates& hidden) {
    const TensorView& x = hidden.x;
    Tensor& states = hidden.after_blocks ? after_ : before_;
    if (states.empty() || states.view().size(0) != x.size(0) || states.view().size(1) != x.size(1)) {
      states = Tensor(DType::f32, {x.size(0), x.size(1)});
    }
    convert(x, states);
    if (hidden.after_blocks) measure(hidden.context);
  }

  const std::array<std::array<std::vector<double>, 2>, 2>& ratios() const { return ratios_; }
  std::int64_t tokens() const { return before_.empty() ? 0 : before_.view().size(0); }

 private:
  void measure(const StepContext& context) {
    const auto expert = static_cast<std::size_t>(context.expert);
    const auto branch = static_cast<std::size_t>(context.branch == Branch::conditional ? 0 : 1);
    const std::int64_t rows = before_.view().size(0);
    const std::int64_t width = before_.view().size(1);
    std::vector<double>& last = norms_[branch];
    const bool follows = context.step == step_[branch] + 1 && context.expert == expert_[branch];
    std::vector<double> norms(static_cast<std::size_t>(rows));
    double sum = 0.0;
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      double square = 0.0;
      for (std::int64_t d = 0; d < width; ++d) {
        const double change = double{after_.as<float>()[i * width + d]} - double{before_.as<float>()[i * width + d]};
        square += change * change;
      }
      const auto token = static_cast<std::size_t>(i);
      norms[token] = std::sqrt(square);
      if (!follows || last[token] == 0.0) continue;
      sum += norms[token] / last[token];
      ++count;
    }
    ratios_[expert][branch].push_back(count > 0 ? sum / static_cast<double>(count) : 1.0);
    last = std::move(norms);
    step_[branch] = context.step;
    expert_[branch] = context.expert;
  }

  Tensor before_, after_;                     // [tokens, D] f32
  std::array<std::vector<double>, 2> norms_;  // per branch, of the last step's residual
  std::array<int, 2> step_ = {-2, -2}, expert_ = {-1, -1};
  std::array<std::array<std::vector<double>, 2>, 2> ratios_;
};

void add(std::vector<double>& sums, const std::vector<double>& ratios) {
  sums.resize(std::max(sums.size(), ratios.size()), 0.0);
  for (std::size_t i = 0; i < ratios.size(); ++i) sums[i] += ratios[i];
}

std::vector<double> divided(std::vector<double> sums, std::size_t by) {
  for (double& sum : sums) sum /= static_cast<double>(by);
  return sums;
}

nlohmann::json measured_json(const MagnitudeRun& run) {
  return {{"prompts", run.prompts}, {"executor", run.calibration.executor}, {"tokens", run.calibration.tokens}, {"sums", run.sums}};
}

MagnitudeRun measured_run(const Unfinished* unfinished) {
  MagnitudeRun run;
  if (unfinished == nullptr || unfinished->taken().is_null()) return run;
  try {
    unfinished->taken().at("prompts").get_to(run.prompts);
    unfinished->taken().at("executor").get_to(run.calibration.executor);
    unfinished->taken().at("tokens").get_to(run.calibration.tokens);
    unfinished->taken().at("sums").get_to(run.sums);
  } catch (const nlohmann::json::exception&) {
    unfinished->fail();
  }
  return run;
}

}  // namespace

MagnitudeRun calibrate_magnitudes(const Generate& generate, GenerateOptions options, const std::vector<std::string>& prompts,
                                  const std::string& model_directory, const Unfinished* unfinished) {
  MagnitudeRun run = measured_run(unfinished);
  run.calibration.model = model_fingerprint(model_directory);
  const std::string executor = options.attention.executor;
  options.attention = AttentionConfig();
  options.attention.executor = executor;
  options.cache = {};
  const std::size_t runs = options.prompt_embeds.empty() ? prompts.size() : 1;
  if (runs == 0) throw Error("calibrate", "prompts: expected at least one, got none");
  for (options.seed += run.prompts; run.prompts < runs; ++options.seed) {
    RatioMeter meter;
    options.hidden_observer = [&](const HiddenStates& hidden) { meter(hidden); };
    if (options.prompt_embeds.empty()) options.prompt = prompts[run.prompts];
    run.calibration.executor = generate(options).report.attention.executor;
    run.calibration.tokens = meter.tokens();
    for (std::size_t e = 0; e < 2; ++e) {
      for (std::size_t b = 0; b < 2; ++b) add(run.sums[e][b], meter.ratios()[e][b]);
    }
    ++run.prompts;
    if (unfinished != nullptr) unfinished->keep(measured_json(run));
  }
  const auto ratios = [&](std::size_t e) {
    return MagnitudeRatios{divided(run.sums[e][0], run.prompts), divided(run.sums[e][1], run.prompts)};
  };
  run.calibration.ratios = {ratios(0), ratios(1)};
  return run;
}

}  // namespace winnow::report
