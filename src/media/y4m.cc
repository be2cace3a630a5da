#include "media/y4m.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "media/frames.h"
#include "winnow/error.h"

namespace winnow::media {

void check_frames(const std::string& operation, const TensorView& frames) {
  const bool good = frames.rank == 4 && frames.size(3) == 3 && frames.dtype == DType::f32 && frames.device == Device::cpu &&
                    frames.is_contiguous() && frames.numel() > 0;
  if (!good) throw Error(operation, "frames: expected [F,H,W,3] contiguous f32 with F, H, W > 0, got " + frames.describe());
}

namespace {

std::uint8_t round_u8(float x) { return static_cast<std::uint8_t>(x + 0.5F); }  // x is in [16,240]

// One frame as three planes.
void to_ycbcr(const float* rgb, std::size_t pixels, std::uint8_t* planes) {
  for (std::size_t i = 0; i < pixels; ++i) {
    const float r = clamp_unit(rgb[3 * i]);
    const float g = clamp_unit(rgb[3 * i + 1]);
    const float b = clamp_unit(rgb[3 * i + 2]);
    const float luma = 0.299F * r + 0.587F * g + 0.114F * b;
    planes[i] = round_u8(16.0F + 219.0F * luma);
    planes[pixels + i] = round_u8(128.0F + 224.0F * (b - luma) / 1.772F);
    planes[2 * pixels + i] = round_u8(128.0F + 224.0F * (r - luma) / 1.402F);
  }
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

}  // namespace

void write_y4m(const TensorView& frames, int fps, const ByteSink& sink, const Progress& progress) {
  check_frames("video", frames);
  if (fps < 1 || fps > 1000) throw Error("video", "fps: expected a number in [1,1000], got " + std::to_string(fps));
  const auto start = std::chrono::steady_clock::now();
  const auto pixels = static_cast<std::size_t>(frames.size(1) * frames.size(2));
  const std::string header = "YUV4MPEG2 W" + std::to_string(frames.size(2)) + " H" + std::to_string(frames.size(1)) + " F" +
                             std::to_string(fps) + ":1 Ip A1:1 C444 XCOLORRANGE=LIMITED\n";
  sink(bytes_of(header));
  std::vector<std::uint8_t> planes(3 * pixels);
  ProgressEvent event;
  event.stage = "write";
  event.num_steps = static_cast<int>(frames.size(0));
  for (std::int64_t f = 0; f < frames.size(0); ++f) {
    event.step = static_cast<int>(f);
    event.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (progress && !progress(event)) throw Cancelled("video");
    to_ycbcr(frames.as<float>() + static_cast<std::size_t>(f) * 3 * pixels, pixels, planes.data());
    sink(bytes_of("FRAME\n"));
    sink(std::as_bytes(std::span(planes)));
  }
}

}  // namespace winnow::media
