// The ffmpeg program as a child process that reads Y4M from a pipe. Winnow links to none of ffmpeg's libraries.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>

namespace winnow::media {

// Full path of the ffmpeg program in PATH. Throws Error naming the package to install.
std::string find_ffmpeg();

// Encodes what is written to it into an H.264 MP4 file at `path`, which it overwrites.
class FfmpegMp4 {
 public:
  explicit FfmpegMp4(const std::string& path);
  FfmpegMp4(const FfmpegMp4&) = delete;
  FfmpegMp4& operator=(const FfmpegMp4&) = delete;
  ~FfmpegMp4();  // kills the child if finish() was not reached

  // Throws Error with ffmpeg's own words if it gave up.
  void write(std::span<const std::byte> bytes);
  // Ends the input, waits for the child. Throws Error if it failed.
  void finish();
  // The end of what ffmpeg wrote to its standard error, on one line.
  std::string last_words() const;

 private:
  int wait();
  [[noreturn]] void fail(int status) const;
  int input_ = -1;   // our end of the child's standard input
  int errors_ = -1;  // file that takes its standard error
  pid_t child_ = -1;
};

// Whether the boxes of an MP4 file add up to its size and hold an index and media data.
bool is_complete_mp4(const std::string& path);

}  // namespace winnow::media
