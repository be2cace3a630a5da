// A study as files: JSON for programs, CSV for spreadsheets, Markdown for people, and the plot.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "media/plot.h"
#include "report/study.h"

namespace winnow::report {

// What has to be the same for videos of an earlier report to be taken over.
struct StudyInfo {
  std::string model = {};    // empty without videos
  std::string program = {};  // identifies the build
  Precision precision = Precision::bf16;
  GenerateOptions generate = {};  // sizes, steps, guidance
  int repeat = 1;
};

// {"captures":[{"capture","method","setting","density","rel_l2","mass_recall","set_recall","plan_share","speedup",...}],
//  "videos":[{"method","setting","speedup","density","psnr_db","ssim",...}], "dense":{...}, "video_runs":[...], ...}
// One record of "captures" per capture and setting; one of "videos" per setting, over all prompts; one of "video_runs" per
// generation. Keys without a value are left out: skip_softmax has no set_recall.
std::string to_json(const Study& study, const StudyInfo& info);
// Adds the video rows of an earlier report that `study`'s settings and `info` would give again. Returns how many.
// Throws Error if the text is not such a report.
int take_over_videos(Study& study, const StudyInfo& info, std::string_view json, const std::string& name);

// What decides a generation besides prompt, seed and setting, as JSON text.
std::string generation_text(const StudyInfo& info);

// The records of "captures" and "videos" in one table, with a column that says which.
std::string to_csv(const Study& study);

// Tables in Markdown between marks <!-- compare:NAME --> and <!-- /compare:NAME -->, which tools/splice_tables.py copies into other
// pages: summary, captures, videos, order, fast (for each method, the setting of the highest PSNR whose attention is 1.5 times as fast).
std::string to_markdown(const Study& study);

// Error against density on captures, PSNR against the speed-up of attention on videos; panels without data are left out.
std::vector<media::PlotPanel> plot_panels(const Study& study);

// Identifies this program's file by its contents.
std::string program_fingerprint();

}  // namespace winnow::report
