// Which calls are captured, what the files hold, and what reading them refuses; the generator is a stand-in.
#include "report/capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/safetensors.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow::report {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::message_of;

// Two layers, four steps on two experts, both branches; every call's q holds step and layer.
struct FakeEngine {
  int steps_run = 0;

  GenerateResult operator()(const GenerateOptions& options) {
    Tensor q(DType::f32, {1, 8, 1, 4});
    for (int step = 0; step < options.steps; ++step) {
      if (!options.progress({.stage = "denoise", .step = step})) throw Cancelled("generate");
      ++steps_run;
      for (const Branch branch : {Branch::conditional, Branch::unconditional}) {
        for (int layer = 0; layer < 2; ++layer) {
          AttentionInputs call;
          call.context = {.expert = step / 2, .layer = layer, .num_layers = 2, .step = step, .num_steps = options.steps, .grid = {2, 2, 2}};
          call.context.timestep = 1.0 - 0.25 * step;
          call.context.branch = branch;
          q.as<float>()[0] = static_cast<float>(10 * step + layer);
          call.q = call.k = call.v = q;
          options.attention_observer(call);
        }
      }
    }
    options.progress({.stage = "decode"});
    return {};
  }
};

class Captures : public tests::FolderTest {
 protected:
  std::vector<std::string> run(const CaptureChoice& choice) {
    GenerateOptions options;
    options.prompt = "a ball";
    options.seed = 7;
    options.steps = 4;
    std::vector<std::string> names;
    for (const std::string& file : capture(std::ref(engine_), options, choice, "models/m", path("new/folder")))
      names.push_back(fs::path(file).filename().string());
    return names;
  }
  // One file with equal q, k, v of this length.
  void write(const std::string& name, std::int64_t tokens, const std::map<std::string, std::string>& metadata = {}) const {
    const Tensor x(DType::f32, {tokens, 2, 4});
    const NamedTensor tensors[] = {{"q", x}, {"k", x}, {"v", x}};
    fs::create_directories(fs::path(path(name)).parent_path());
    write_safetensors(path(name), tensors, metadata);
  }

  FakeEngine engine_;
};

TEST_F(Captures, WritesTheChosenCallsAndStopsAfterThem) {
  const CaptureChoice choice = {.layers = {1}, .steps = {0, 2}, .branches = {Branch::conditional}};
  EXPECT_THAT(run(choice), ElementsAre("step00_expert0_layer01_cond.safetensors", "step02_expert1_layer01_cond.safetensors"));
  EXPECT_EQ(engine_.steps_run, 3);
  const Capture read = load_capture(path("new/folder/step02_expert1_layer01_cond.safetensors"));
  EXPECT_EQ(read.q.as<float>()[0], 21.0F);
  EXPECT_EQ(read.context.step, 2);
  EXPECT_EQ(read.context.num_steps, 4);
  EXPECT_EQ(read.context.expert, 1);
  EXPECT_EQ(read.context.layer, 1);
  EXPECT_EQ(read.context.timestep, 0.5);
  EXPECT_EQ(read.context.grid.frames, 2);
  const auto file = SafetensorsFile::open(path("new/folder/step02_expert1_layer01_cond.safetensors"));
  EXPECT_EQ(file.metadata().at("prompt"), "a ball");
  EXPECT_EQ(file.metadata().at("seed"), "7");
  EXPECT_EQ(file.metadata().at("scale"), "0.5");
  EXPECT_EQ(file.metadata().at("model"), "models/m");
}

TEST_F(Captures, EmptyListsStandForAll) {
  EXPECT_EQ(run({}).size(), 16U);
  EXPECT_EQ(run({.experts = {1}, .branches = {Branch::unconditional}}).size(), 4U);
  EXPECT_EQ(load_captures(path("new/folder")).size(), 16U);
}

TEST_F(Captures, RefusesChoicesThatNoCallHas) {
  EXPECT_THAT(message_of([&] { run({.steps = {4}}); }), HasSubstr("steps: expected 0 to 3, got 4"));
  EXPECT_THAT(message_of([&] { run({.layers = {0, 2}}); }), HasSubstr("layers: expected 0 to 1, got 2"));
  EXPECT_THAT(message_of([&] { run({.steps = {0}, .experts = {1}}); }), HasSubstr("no self-attention call"));
  EXPECT_TRUE(fs::is_empty(path("new/folder")));
}

TEST_F(Captures, ACancelledRunIsCancelled) {
  GenerateOptions options;
  options.steps = 4;
  options.progress = [](const ProgressEvent& event) { return event.step < 1; };
  EXPECT_THROW(capture(std::ref(engine_), options, {}, "m", path("x")), Cancelled);
}

TEST_F(Captures, AFolderThatCannotBeMadeIsAnErrorBeforeTheRun) {
  std::ofstream(path("file")) << "x";
  GenerateOptions options;
  options.steps = 4;
  EXPECT_THAT(message_of([&] { capture(std::ref(engine_), options, {}, "m", path("file/below")); }), HasSubstr("file/below"));
  EXPECT_EQ(engine_.steps_run, 0);
}

TEST_F(Captures, NamesArePathsBelowTheFolder) {
  write("b/second.safetensors", 8);
  write("a/first.safetensors", 8);
  std::ofstream(path("notes.txt")) << "ignored";
  const std::vector<Capture> read = load_captures(folder().string());
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[0].name, "a/first");
  EXPECT_EQ(read[1].name, "b/second");
  EXPECT_EQ(read[0].q.view().describe(), "[1,8,2,4] f32");
}

TEST_F(Captures, BadFoldersAndFiles) {
  EXPECT_THAT(message_of([&] { load_captures(path("none")); }), HasSubstr("expected a folder with captures"));
  EXPECT_THAT(message_of([&] { load_captures(folder().string()); }), HasSubstr("found none"));
  write("a.safetensors", 8);
  write("b.safetensors", 9);
  EXPECT_THAT(message_of([&] { load_captures(folder().string()); }), HasSubstr("expected q [1,8,2,4] f32"));
  write("c.safetensors", 8, {{"grid", "2x2x3"}});
  EXPECT_THAT(message_of([&] { load_capture(path("c.safetensors")); }), HasSubstr("expected FxHxW with 8 tokens, got \"2x2x3\""));
  write("c.safetensors", 8, {{"grid", "2x2x2x1"}});
  EXPECT_THAT(message_of([&] { load_capture(path("c.safetensors")); }), HasSubstr("grid"));
  write("c.safetensors", 8, {{"step", "-1"}});
  EXPECT_THAT(message_of([&] { load_capture(path("c.safetensors")); }), HasSubstr("metadata step"));
  write("c.safetensors", 8, {{"timestep", "875"}});
  EXPECT_THAT(message_of([&] { load_capture(path("c.safetensors")); }), HasSubstr("metadata timestep"));
  write("c.safetensors", 8, {{"branch", "both"}});
  EXPECT_THAT(message_of([&] { load_capture(path("c.safetensors")); }), HasSubstr("metadata branch"));
  EXPECT_THAT(message_of([&] { load_capture(path("a.safetensors"), {"q", "k", "w"}); }), HasSubstr("w"));
  const Tensor flat(DType::f32, {4, 4});
  const NamedTensor tensors[] = {{"q", flat}, {"k", flat}, {"v", flat}};
  write_safetensors(path("d.safetensors"), tensors);
  EXPECT_THAT(message_of([&] { load_capture(path("d.safetensors")); }), HasSubstr("expected [S,H,D] or [B,S,H,D]"));
}

}  // namespace
}  // namespace winnow::report
