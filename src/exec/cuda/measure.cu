#include "exec/cuda/measure.h"

#include "exec/cuda/runtime.h"

namespace winnow::cuda {

namespace {

void ok(cudaError_t e, const char* what) { check(e, "cuda", what); }

void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, int gpu) {
  const OnDevice on(gpu);
  ok(cudaMemcpy(to, from, bytes, kind), "copy");
  ok(cudaDeviceSynchronize(), "copy");  // one from pageable memory may return before the device has it
}

class Event {
 public:
  Event() { ok(cudaEventCreate(&event_), "event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record() { ok(cudaEventRecord(event_, nullptr), "event"); }
  // Waits for both.
  double seconds_since(const Event& begin) {
    float ms = 0.F;
    ok(cudaEventSynchronize(event_), "attention");
    ok(cudaEventElapsedTime(&ms, begin.event_, event_), "event");
    return 1e-3 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

void copy_to_device(void* to, const void* from, std::size_t bytes, int gpu) { copy(to, from, bytes, cudaMemcpyHostToDevice, gpu); }
void copy_to_host(void* to, const void* from, std::size_t bytes, int gpu) { copy(to, from, bytes, cudaMemcpyDeviceToHost, gpu); }

double seconds_of(const std::function<void()>& queue, int gpu) {
  const OnDevice on(gpu);
  Event begin, end;
  begin.record();
  queue();
  end.record();
  return end.seconds_since(begin);
}

}  // namespace winnow::cuda
