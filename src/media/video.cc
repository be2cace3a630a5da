#include "media/video.h"

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "core/partial_file.h"
#include "media/ffmpeg.h"
#include "media/frames.h"
#include "media/png.h"
#include "media/sheet.h"
#include "media/y4m.h"
#include "winnow/error.h"

namespace winnow::media {

namespace {

void write_mp4(const std::string& path, const TensorView& frames, int fps, const Progress& progress) {
  PartialFile file("video", path);  // before the child, so that it outlives it
  FfmpegMp4 encoder(file.partial_path());
  write_y4m(
      frames, fps, [&](std::span<const std::byte> bytes) { encoder.write(bytes); }, progress);
  encoder.finish();
  // ffmpeg 5.1 ends with code 0 after "Error writing trailer: No space left on device".
  if (!is_complete_mp4(file.partial_path())) throw Error("video", path + ": ffmpeg left an incomplete file: " + encoder.last_words());
  file.commit();
}

void write_y4m_file(const std::string& path, const TensorView& frames, int fps, const Progress& progress) {
  PartialFile file("video", path);
  write_y4m(
      frames, fps, [&](std::span<const std::byte> bytes) { file.write(bytes); }, progress);
  file.commit();
}

}  // namespace

VideoFormat video_format(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (extension == ".mp4") return VideoFormat::mp4;
  if (extension == ".y4m") return VideoFormat::y4m;
  if (extension == ".png") return VideoFormat::png;
  throw Error("video", path + ": expected a name ending in .mp4, .y4m (lossless) or .png (contact sheet), got \"" + extension + "\"");
}

void check_video_output(const std::string& path) {
  if (video_format(path) == VideoFormat::mp4) find_ffmpeg();
  check_writable("video", path);
}

void check_video_size(const std::string& path, std::int64_t width, std::int64_t height) {
  if (video_format(path) != VideoFormat::mp4 || (width % 2 == 0 && height % 2 == 0)) return;
  throw Error("video", path + ": .mp4 needs an even width and height, got " + std::to_string(width) + "x" + std::to_string(height) +
                           "; .y4m takes any");
}

void write_video(const std::string& path, const TensorView& frames, int fps, const Progress& progress) {
  const VideoFormat format = video_format(path);
  check_frames("video", frames);
  check_video_size(path, frames.size(2), frames.size(1));
  switch (format) {
    case VideoFormat::mp4: return write_mp4(path, frames, fps, progress);
    case VideoFormat::y4m: return write_y4m_file(path, frames, fps, progress);
    case VideoFormat::png: return write_png(path, contact_sheet(frames));
  }
}

}  // namespace winnow::media
