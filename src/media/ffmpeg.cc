#include "media/ffmpeg.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "winnow/error.h"

namespace winnow::media {

namespace {

constexpr const char* kOperation = "video";

// limited-range BT.601 in, as media/y4m.h writes it; limited-range BT.709 out, which is what players expect, and tagged so.
// crf 14 is visually lossless. -f names the container because the file's name ends in ".partial".
std::vector<std::string> command(const std::string& path) {
  return {find_ffmpeg(),
          "-hide_banner",
          "-loglevel",
          "error",
          "-nostdin",
          "-y",
          "-f",
          "yuv4mpegpipe",
          "-i",
          "pipe:0",
          "-vf",
          "scale=in_color_matrix=bt601:out_color_matrix=bt709:flags=accurate_rnd,format=yuv420p",
          "-c:v",
          "libx264",
          "-crf",
          "14",
          "-preset",
          "medium",
          "-color_range",
          "tv",
          "-colorspace",
          "bt709",
          "-color_primaries",
          "bt709",
          "-color_trc",
          "bt709",
          "-movflags",
          "+faststart",
          "-f",
          "mp4",
          "file:" + path};
}

}  // namespace

std::string find_ffmpeg() {
  std::string program = find_program("ffmpeg");
  if (!program.empty()) return program;
  throw Error(kOperation,
              "writing .mp4 needs the program ffmpeg in PATH, and there is none: install the package \"ffmpeg\", or write .y4m");
}

FfmpegMp4::FfmpegMp4(const std::string& path) : ChildProgram(kOperation, command(path)) {}

bool is_complete_mp4(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::array<unsigned char, 16> head{};  // 32-bit size, type, and a 64-bit size if the first one is 1; big endian
  const auto big_endian = [&](int from, int count) {
    std::uint64_t value = 0;
    for (int i = from; i < from + count; ++i) value = value << 8U | head[static_cast<std::size_t>(i)];
    return value;
  };
  std::error_code ignored;
  const std::uint64_t file_size = std::filesystem::file_size(path, ignored);
  if (ignored) return false;
  bool has_index = false;
  bool has_media = false;
  std::uint64_t at = 0;
  while (at < file_size) {
    in.seekg(static_cast<std::streamoff>(at));
    head.fill(0);
    in.read(reinterpret_cast<char*>(head.data()), static_cast<std::streamsize>(std::min<std::uint64_t>(head.size(), file_size - at)));
    const std::uint64_t size = big_endian(0, 4) == 1 ? big_endian(8, 8) : big_endian(0, 4);
    if (!in || size < 8 || size > file_size - at) return false;
    const std::string_view type(reinterpret_cast<const char*>(head.data()) + 4, 4);
    has_index = has_index || type == "moov";
    has_media = has_media || (type == "mdat" && size > 8);
    at += size;
  }
  return has_index && has_media;
}

}  // namespace winnow::media
