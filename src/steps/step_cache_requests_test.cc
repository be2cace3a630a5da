// Many different requests on one step cache: each gets back what is its own, whatever the others do and however they end.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "steps/step_cache.h"
#include "steps/step_cache_testing.h"
#include "winnow/error.h"

namespace winnow {
namespace {

using steps_testing::Model;

// A request with 1 to 3 samples. What its blocks add is a tag: no two forwards of the whole test have the same.
struct Request {
  std::uint64_t id = 0;  // of its first sample
  int samples = 1;
  std::vector<int> experts;
  int guided_from = 0, guided_until = 0;
  int cancelled_at = -1;  // step
  int throws_at = -1;
  int throws_in = 0;  // block
  int step = 0;
  Model model;
  // [sample, branch] the tag of the last computed forward of this expert
  std::map<std::pair<int, int>, float> tags;

  bool done() const { return step == static_cast<int>(experts.size()); }
};

class Server {
 public:
  explicit Server(unsigned seed) : random_(seed), cache_(steps_testing::first_block(0.3F, 0.6F)) {}

  // Runs `count` requests, at most five at a time, taking turns at random.
  void serve(int count) {
    std::vector<Request> running;
    for (int begun = 0; begun < count || !running.empty();) {
      if (begun < count && running.size() < 5) {
        running.push_back(make());
        ++begun;
        continue;
      }
      const auto which = static_cast<std::size_t>(draw(0, static_cast<int>(running.size()) - 1));
      if (!advance(running[which])) {
        for (int s = 0; s < running[which].samples; ++s) cache_.end_request(running[which].id + static_cast<std::uint64_t>(s));
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
  }

  const StepCache& cache() const { return cache_; }
  int wrong() const { return wrong_; }
  int thrown() const { return thrown_; }
  int cancelled() const { return cancelled_; }

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  Request make() {
    Request r;
    r.id = next_id_;
    r.samples = draw(1, 3);
    next_id_ += static_cast<std::uint64_t>(r.samples);
    r.experts = steps_testing::schedule(draw(0, 6), draw(1, 8));
    const int steps = static_cast<int>(r.experts.size());
    r.guided_from = draw(0, 3);
    r.guided_until = draw(0, steps);
    if (draw(0, 4) == 0) r.cancelled_at = draw(0, steps - 1);
    if (draw(0, 4) == 0) r.throws_at = draw(0, steps - 1);
    r.throws_in = draw(0, 1);
    r.model.tokens = draw(1, 40);
    r.model.width = 8 * draw(1, 3);
    for (int s = 0; s < r.samples; ++s) cache_.begin_request(r.id + static_cast<std::uint64_t>(s), r.experts);
    return r;
  }

  // One step of all samples and branches; false once the request is over.
  bool advance(Request& r) {
    if (r.step == r.cancelled_at) return ++cancelled_, false;
    const auto step = static_cast<std::size_t>(r.step);
    if (r.step > 0 && r.experts[step] != r.experts[step - 1]) r.tags.clear();
    try {
      for (int sample = 0; sample < r.samples; ++sample) {
        forward(r, sample, Branch::conditional);
        if (r.step >= r.guided_from && r.step < r.guided_until) forward(r, sample, Branch::unconditional);
      }
    } catch (const Error&) {
      ++thrown_;
      return false;
    }
    ++r.step;
    return !r.done();
  }

  void forward(Request& r, int sample, Branch branch) {
    Model& model = r.model;
    model.first = 1.0F + 0.25F * static_cast<float>(draw(0, 2));
    model.rest = next_tag_++;
    model.throws_in_block.reset();
    if (r.step == r.throws_at && sample == r.samples - 1) model.throws_in_block = r.throws_in;
    const Model::Result result = model.run(cache_, r.step, r.id + static_cast<std::uint64_t>(sample), branch);
    float& tag = r.tags[{sample, static_cast<int>(branch)}];
    if (result.reason != CacheReason::reused) tag = model.rest;
    if (result.x != model.input + model.first + tag) ++wrong_;
  }

  std::mt19937 random_;
  StepCache cache_;
  std::uint64_t next_id_ = 1;
  float next_tag_ = 16.0F;  // exact in f32, also with the quarters of `first`
  int wrong_ = 0, thrown_ = 0, cancelled_ = 0;
};

TEST(StepCacheRequests, TwoHundredMixedOnesNeverShare) {
  Server server(5);
  server.serve(200);
  EXPECT_EQ(server.wrong(), 0);
  EXPECT_EQ(server.cache().bytes(), 0U);
  // The test is what it says it is.
  EXPECT_GT(server.cache().totals().experts[0].reused(), 100);
  EXPECT_GT(server.cache().totals().experts[1].reused(), 100);
  EXPECT_GT(server.thrown(), 10);
  EXPECT_GT(server.cancelled(), 10);
  const std::size_t peak = server.cache().totals().peak_bytes;
  server.serve(200);
  EXPECT_LE(server.cache().totals().peak_bytes, peak + peak / 2);  // of other requests, not of these and the first 200
  EXPECT_EQ(server.cache().bytes(), 0U);
  EXPECT_EQ(server.wrong(), 0);
}

}  // namespace
}  // namespace winnow
