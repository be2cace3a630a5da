// The ffmpeg program as a child process that reads Y4M from a pipe.
#pragma once

#include <string>

#include "media/child_program.h"

namespace winnow::media {

// Full path of the ffmpeg program in PATH. Throws Error naming the package to install.
std::string find_ffmpeg();

// Encodes what is written to it into an H.264 MP4 file at `path`, which it overwrites.
class FfmpegMp4 : public ChildProgram {
 public:
  explicit FfmpegMp4(const std::string& path);
};

// Whether the boxes of an MP4 file add up to its size and hold an index and media data.
bool is_complete_mp4(const std::string& path);

}  // namespace winnow::media
