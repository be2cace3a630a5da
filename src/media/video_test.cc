// Y4M bytes, MP4 through ffmpeg, and everything that can go wrong while writing.
#include "media/video.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "media/ffmpeg.h"
#include "media/y4m.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/variable.h"
#include "winnow/error.h"

namespace winnow::media {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Scratch = tests::FolderTest;
using tests::message_of;

// Writes fail with "File too large" past `bytes`, in this process and its children: a full disk that needs no mount.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    signal(SIGXFSZ, SIG_DFL);
  }

 private:
  rlimit old_{};
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 256> buffer{};
  while (pipe != nullptr && fgets(buffer.data(), buffer.size(), pipe) != nullptr) text += buffer.data();
  if (pipe != nullptr) pclose(pipe);
  return text;
}

bool has_ffmpeg() {
  try {
    find_ffmpeg();
    return true;
  } catch (const Error&) {
    return false;
  }
}

Tensor gradient(std::int64_t frames, std::int64_t height, std::int64_t width) {
  Tensor t(DType::f32, {frames, height, width, 3});
  for (std::int64_t i = 0; i < t.numel(); ++i) t.as<float>()[i] = static_cast<float>(i * 37 % 101) / 100.0F;
  return t;
}

using Y4m = Scratch;
using Mp4 = Scratch;
using VideoErrors = Scratch;

TEST_F(Y4m, ExactBytes) {
  Tensor t(DType::f32, {2, 1, 3, 3});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // black, white, red; then blue, out of range and not a number, mid grey
  const float values[] = {0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 7, -3, nan, 0.5F, 0.5F, 0.5F};
  std::copy(std::begin(values), std::end(values), t.as<float>());
  write_video(path("a.y4m"), t, 16);
  std::string expected = "YUV4MPEG2 W3 H1 F16:1 Ip A1:1 C444 XCOLORRANGE=LIMITED\n";
  expected += "FRAME\n\x10\xEB\x51\x80\x80\x5A\x80\x80\xF0";
  expected += "FRAME\n\x29\x51\x7E\xF0\x5A\x80\x6E\xF0\x80";
  EXPECT_EQ(read_file(path("a.y4m")), expected);
  EXPECT_THAT(listing(), ::testing::ElementsAre("a.y4m"));
}

TEST_F(Y4m, FfmpegReadsTheColoursBack) {
  if (!has_ffmpeg()) GTEST_SKIP() << "no ffmpeg here";
  Tensor t(DType::f32, {1, 2, 2, 3});
  const float values[] = {1, 0, 0, 0, 1, 0, 0, 0, 1, 0.25F, 0.5F, 0.75F};
  std::copy(std::begin(values), std::end(values), t.as<float>());
  write_video(path("a.y4m"), t, 16);
  output_of(find_ffmpeg() + " -v error -i " + path("a.y4m") + " -sws_flags accurate_rnd -f rawvideo -pix_fmt rgb24 " + path("a.rgb"));
  const std::string rgb = read_file(path("a.rgb"));
  ASSERT_EQ(rgb.size(), 12U);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(static_cast<unsigned char>(rgb[i]), values[i] * 255.0F, 3.0F) << i;
}

TEST_F(Y4m, ReplacesAnExistingFileAndKeepsALink) {
  std::ofstream(path("real.y4m")) << "old";
  fs::create_symlink(path("real.y4m"), path("link.y4m"));
  write_video(path("link.y4m"), gradient(1, 2, 2), 8);
  EXPECT_TRUE(fs::is_symlink(path("link.y4m")));
  EXPECT_THAT(read_file(path("real.y4m")), HasSubstr("YUV4MPEG2"));
}

TEST_F(Mp4, DecodesWithFrameCountSizeAndColours) {
  if (!has_ffmpeg()) GTEST_SKIP() << "no ffmpeg here";
  Tensor t(DType::f32, {5, 48, 64, 3});
  for (std::int64_t i = 0; i < t.numel(); i += 3) t.as<float>()[i] = 0.8F;  // (0.8, 0, 0.4)
  for (std::int64_t i = 2; i < t.numel(); i += 3) t.as<float>()[i] = 0.4F;
  write_video(path("a.mp4"), t, 8);
  EXPECT_THAT(listing(), ::testing::ElementsAre("a.mp4"));
  const std::string probe = output_of(
      "ffprobe -v error -count_frames -show_entries "
      "stream=codec_name,width,height,pix_fmt,color_space,r_frame_rate,nb_read_frames -of csv=p=0 " +
      path("a.mp4"));
  EXPECT_EQ(probe, "h264,64,48,yuv420p,bt709,8/1,5\n");
  output_of(find_ffmpeg() + " -v error -i " + path("a.mp4") + " -f rawvideo -pix_fmt rgb24 " + path("a.rgb"));
  const std::string rgb = read_file(path("a.rgb"));
  ASSERT_EQ(rgb.size(), 5U * 48U * 64U * 3U);
  EXPECT_NEAR(static_cast<unsigned char>(rgb[3000]), 204, 4);
  EXPECT_NEAR(static_cast<unsigned char>(rgb[3001]), 0, 4);
  EXPECT_NEAR(static_cast<unsigned char>(rgb[3002]), 102, 4);
}

TEST_F(Mp4, TruncatedFilesAreRecognised) {
  if (!has_ffmpeg()) GTEST_SKIP() << "no ffmpeg here";
  write_video(path("a.mp4"), gradient(3, 32, 32), 8);
  const std::string whole = read_file(path("a.mp4"));
  EXPECT_TRUE(is_complete_mp4(path("a.mp4")));
  for (const std::size_t size : {std::size_t{0}, std::size_t{5}, whole.size() / 2, whole.size() - 1}) {
    std::ofstream(path("b.mp4"), std::ios::binary) << whole.substr(0, size);
    EXPECT_FALSE(is_complete_mp4(path("b.mp4"))) << size;
  }
  EXPECT_FALSE(is_complete_mp4(path("missing.mp4")));
}

TEST_F(Mp4, OddSizesAreRefused) {
  EXPECT_THAT(message_of([&] { write_video(path("a.mp4"), gradient(1, 3, 4), 8); }), HasSubstr("even width and height, got 4x3"));
  EXPECT_THAT(listing(), IsEmpty());
}

TEST_F(Mp4, ChildThatDiesEarlyIsAnErrorAndNoSigpipe) {
  fs::create_directory(path("bin"));
  std::ofstream(path("bin/ffmpeg")) << "#!/bin/sh\necho 'first line' >&2\necho 'cannot encode today' >&2\nexit 3\n";
  fs::permissions(path("bin/ffmpeg"), fs::perms::owner_all);
  const tests::Variable variable("PATH", path("bin").c_str());
  const std::string message = message_of([&] { write_video(path("a.mp4"), gradient(60, 64, 64), 8); });
  EXPECT_THAT(message, AllOf(HasSubstr("code 3"), HasSubstr("cannot encode today")));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_THAT(listing(), ::testing::ElementsAre("bin"));
}

TEST_F(Mp4, AbsentFfmpegNamesThePackage) {
  fs::create_directory(path("empty"));
  for (const std::string& value : {std::string(), path("empty"), std::string(":")}) {
    const tests::Variable variable("PATH", value.c_str());
    EXPECT_THAT(message_of([&] { check_video_output(path("a.mp4")); }), HasSubstr("install the package \"ffmpeg\""));
    EXPECT_THAT(message_of([&] { write_video(path("a.mp4"), gradient(1, 2, 2), 8); }), HasSubstr("install the package"));
    EXPECT_NO_THROW(check_video_output(path("a.y4m")));
  }
  EXPECT_THAT(listing(), ::testing::ElementsAre("empty"));
}

TEST_F(Mp4, FullDiskLeavesNothing) {
  if (!has_ffmpeg()) GTEST_SKIP() << "no ffmpeg here";
  std::string message;
  {
    const FileSizeLimit limit(4096);
    message = message_of([&] { write_video(path("a.mp4"), gradient(12, 96, 96), 8); });
  }
  EXPECT_THAT(message, AllOf(HasSubstr("incomplete file"), HasSubstr("File too large")));
  EXPECT_THAT(listing(), IsEmpty());
}

TEST_F(VideoErrors, FullDiskLeavesNothing) {
  for (const char* name : {"a.y4m", "a.png"}) {
    std::string message;
    {
      const FileSizeLimit limit(512);
      message = message_of([&] { write_video(path(name), gradient(4, 32, 32), 8); });
    }
    EXPECT_THAT(message, AllOf(HasSubstr(name), HasSubstr("File too large")));
    EXPECT_THAT(listing(), IsEmpty());
  }
}

TEST_F(VideoErrors, FullDeviceIsReported) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  fs::create_symlink("/dev/full", path("full.y4m"));
  EXPECT_THAT(message_of([&] { write_video(path("full.y4m"), gradient(1, 2, 2), 8); }),
              AllOf(HasSubstr("full.y4m"), HasSubstr("No space left on device")));
  EXPECT_THAT(listing(), ::testing::ElementsAre("full.y4m"));
}

TEST_F(VideoErrors, BadNamesAndFolders) {
  EXPECT_THAT(message_of([&] { check_video_output(path("missing/a.y4m")); }), HasSubstr("missing does not exist"));
  EXPECT_THAT(message_of([&] { check_video_output(path("a.avi")); }), AllOf(HasSubstr(".mp4, .y4m"), HasSubstr("got \".avi\"")));
  EXPECT_THAT(message_of([&] { check_video_output(path("noextension")); }), HasSubstr("got \"\""));
  fs::create_directory(path("folder.y4m"));
  EXPECT_THAT(message_of([&] { check_video_output(path("folder.y4m")); }), HasSubstr("got a folder"));
  std::ofstream(path("file")) << "x";
  EXPECT_THAT(message_of([&] { check_video_output(path("file/a.y4m")); }), HasSubstr("does not exist"));
  EXPECT_NO_THROW(check_video_output(path("A.Y4M")));
  EXPECT_THAT(listing(), ::testing::UnorderedElementsAre("folder.y4m", "file"));
}

TEST_F(VideoErrors, SizesThatOneFormatCannotHold) {
  EXPECT_THAT(message_of([&] { check_video_size("a.mp4", 5, 4); }), HasSubstr("a.mp4: .mp4 needs an even width and height, got 5x4"));
  EXPECT_THAT(message_of([&] { check_video_size("a.mp4", 4, 5); }), HasSubstr("got 4x5"));
  EXPECT_NO_THROW(check_video_size("a.mp4", 6, 4));
  EXPECT_NO_THROW(check_video_size("a.y4m", 5, 3));
  EXPECT_NO_THROW(check_video_size("a.png", 5, 3));
}

TEST_F(VideoErrors, BadFrames) {
  const Tensor flat(DType::f32, {4, 4, 3});
  EXPECT_THAT(message_of([&] { write_video(path("a.y4m"), flat, 8); }), HasSubstr("expected [F,H,W,3]"));
  EXPECT_THAT(message_of([&] { write_video(path("a.y4m"), gradient(0, 4, 4), 8); }), HasSubstr("got [0,4,4,3]"));
  EXPECT_THAT(message_of([&] { write_video(path("a.y4m"), gradient(1, 4, 4), 0); }),
              HasSubstr("fps: expected a number in [1,1000], got 0"));
  EXPECT_THAT(listing(), IsEmpty());
}

TEST_F(VideoErrors, CancellingLeavesNothing) {
  std::vector<const char*> names = {"a.y4m"};
  if (has_ffmpeg()) names.push_back("a.mp4");
  for (const char* name : names) {
    int calls = 0;
    const Progress stop_at_third = [&](const ProgressEvent& event) {
      EXPECT_EQ(event.stage, "write");
      EXPECT_EQ(event.num_steps, 6);
      return ++calls < 3;
    };
    EXPECT_THROW(write_video(path(name), gradient(6, 32, 32), 8, stop_at_third), Cancelled);
    EXPECT_EQ(calls, 3);
    EXPECT_THAT(listing(), IsEmpty());
  }
}

}  // namespace
}  // namespace winnow::media
