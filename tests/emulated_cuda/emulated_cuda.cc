#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "cuda_runtime.h"
#include "faults.h"

namespace emulated_cuda {

thread_local Thread current;
std::atomic<bool> graphs_fail{false};

namespace {

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated CUDA: %s (block %u,%u,%u)\n", what, current.block.x, current.block.y, current.block.z);
  std::abort();
}

// Behind what a kernel may write.
constexpr size_t kGuardBytes = 1024;
constexpr uint8_t kGuard = 0xA7;

struct Barrier {
  int arrived = 0;
  uint64_t generation = 0;
};

struct Warp {
  Barrier barrier;
  unsigned alive = 0;
  unsigned waiting_mask = 0;
  alignas(16) std::byte slots[32][kLaneBytes];
};

// A thread's copies under way: groups end with a null target, so that the oldest group comes first.
struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};
struct Copies {
  std::vector<Copy> queue;
  int groups = 0;
};

// One block in flight. Fibers take turns; one that waits yields until its barrier's generation moves on.
class Block {
 public:
  Block(dim3 threads, size_t shared_bytes)
      : threads_(threads),
        count_(static_cast<int>(threads.x * threads.y * threads.z)),
        warps_(static_cast<size_t>((count_ + 31) / 32)),
        shared_bytes_(shared_bytes),
        shared_(static_cast<std::byte*>(std::aligned_alloc(1024, (shared_bytes / 1024 + 2) * 1024))) {
    std::memset(shared_ + shared_bytes_, kGuard, kGuardBytes);
  }
  ~Block() { std::free(shared_); }

  void run(uint3 index, dim3 grid, const std::function<void()>& body);

  void block_barrier() { wait(block_, alive_); }
  void warp_barrier(unsigned mask) {
    Warp& warp = warps_[static_cast<size_t>(linear_thread() / 32)];
    if (warp.barrier.arrived > 0 && warp.waiting_mask != mask) die("lanes of a warp wait with different masks");
    warp.waiting_mask = mask;
    wait(warp.barrier, std::popcount(mask & warp.alive));
  }
  void named_barrier(int id, int threads) { wait(named_[id], threads); }
  void yield() {
    const Thread me = current;
    *scheduler_ = std::move(*scheduler_).resume();
    current = me;
  }
  void note_progress() { ++progress_; }
  Warp& warp() { return warps_[static_cast<size_t>(linear_thread() / 32)]; }
  Copies& copies() { return copies_[static_cast<size_t>(linear_thread())]; }
  std::byte* shared() { return shared_; }
  size_t shared_bytes() const { return shared_bytes_; }

 private:
  using Fiber = boost::context::fiber;

  void wait(Barrier& barrier, int needed) {
    if (++barrier.arrived >= needed) return release(barrier);
    const uint64_t generation = barrier.generation;
    const Thread me = current;
    while (barrier.generation == generation) {
      *scheduler_ = std::move(*scheduler_).resume();
      current = me;
    }
  }
  void release(Barrier& barrier) {
    barrier.arrived = 0;
    ++barrier.generation;
    ++progress_;
  }
  void exit_thread() {
    --alive_;
    Warp& w = warp();
    w.alive &= ~(1u << lane());
    ++progress_;
    if (block_.arrived > 0 && block_.arrived >= alive_) release(block_);
    if (w.barrier.arrived > 0 && w.barrier.arrived >= std::popcount(w.waiting_mask & w.alive)) release(w.barrier);
  }

  const dim3 threads_;
  const int count_;
  int alive_ = 0;
  uint64_t progress_ = 0;
  Barrier block_, named_[16];
  std::vector<Warp> warps_;
  std::vector<Copies> copies_;
  Fiber* scheduler_ = nullptr;
  size_t shared_bytes_;
  std::byte* shared_;
};

// Device memory: 1024 bytes in front of each allocation hold its size and guards, kGuardBytes behind it are guards.
std::vector<std::byte*> allocations;

void check_guards(const std::byte* memory) {
  size_t bytes = 0;
  std::memcpy(&bytes, memory, sizeof bytes);
  const auto intact = [](std::byte b) { return b == std::byte{kGuard}; };
  if (std::all_of(memory + sizeof bytes, memory + 1024, intact) &&
      std::all_of(memory + 1024 + bytes, memory + 1024 + bytes + kGuardBytes, intact))
    return;
  std::fprintf(stderr, "emulated CUDA: something wrote around an allocation of %zu bytes\n", bytes);
  std::abort();
}

thread_local Block* block = nullptr;

void Block::run(uint3 index, dim3 grid, const std::function<void()>& body) {
  static thread_local boost::context::pooled_fixedsize_stack stacks(128 * 1024);
  std::memset(shared_, 0xFF, shared_bytes_);
  alive_ = count_;
  block_ = {};
  for (Barrier& barrier : named_) barrier = {};
  copies_.assign(static_cast<size_t>(count_), {});
  for (size_t w = 0; w < warps_.size(); ++w) {
    const int lanes = std::min(32, count_ - static_cast<int>(w) * 32);
    warps_[w].barrier = {};
    warps_[w].alive = lanes == 32 ? 0xFFFFFFFFu : (1u << lanes) - 1;
  }
  std::vector<Fiber> fibers(static_cast<size_t>(count_));
  std::vector<Fiber> back(static_cast<size_t>(count_));
  const auto enter = [&](int t) {
    const auto u = static_cast<unsigned>(t);
    current = {{u % threads_.x, u / threads_.x % threads_.y, u / threads_.x / threads_.y}, index, threads_, grid};
  };
  for (int t = 0; t < count_; ++t) {
    fibers[static_cast<size_t>(t)] = Fiber(std::allocator_arg, stacks, [&, t](Fiber&& caller) {
      back[static_cast<size_t>(t)] = std::move(caller);
      enter(t);
      body();
      enter(t);
      exit_thread();
      return std::move(back[static_cast<size_t>(t)]);
    });
  }
  while (alive_ > 0) {
    const uint64_t before = progress_;
    for (int t = 0; t < count_; ++t) {
      Fiber& fiber = fibers[static_cast<size_t>(t)];
      if (!fiber) continue;
      scheduler_ = &back[static_cast<size_t>(t)];
      enter(t);
      fiber = std::move(fiber).resume();
    }
    if (progress_ == before) die("threads of a block wait for each other");
  }
  for (size_t i = 0; i < kGuardBytes; ++i)
    if (shared_[shared_bytes_ + i] != std::byte{kGuard}) die("a block wrote behind its shared memory");
}

}  // namespace

void block_barrier() {
  block->block_barrier();
}
void warp_barrier(unsigned mask) {
  block->warp_barrier(mask);
}
void named_barrier(int id, int threads) {
  block->named_barrier(id, threads);
}
void yield() {
  block->yield();
}
void note_progress() {
  block->note_progress();
}
std::byte* lane_slot(int lane) {
  return block->warp().slots[lane];
}
unsigned alive_lanes() {
  return block->warp().alive;
}
std::byte* dynamic_shared() {
  return block->shared();
}
size_t dynamic_shared_bytes() {
  return block->shared_bytes();
}

void copy_later(void* to, const void* from, size_t bytes) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (bytes > 16 || !aligned(to) || !aligned(from)) die("an asynchronous copy of unaligned or too many bytes");
  block->copies().queue.push_back({to, from, bytes});
}
void commit_copies() {
  block->copies().queue.push_back({});
  ++block->copies().groups;
}
void wait_copies(int in_flight) {
  Copies& mine = block->copies();
  size_t done = 0;
  for (; mine.groups > in_flight; ++done) {
    const Copy& copy = mine.queue[done];
    if (copy.to == nullptr) {
      --mine.groups;
      continue;
    }
    std::memset(copy.to, 0, 16);
    if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
  }
  mine.queue.erase(mine.queue.begin(), mine.queue.begin() + static_cast<ptrdiff_t>(done));
}

namespace {

void run_grid(dim3 grid, dim3 threads, size_t shared_bytes, const std::function<void()>& body) {
  if (threads.x * threads.y * threads.z > 1024) die("more than 1024 threads in a block");
  Block running(threads, shared_bytes);
  block = &running;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) running.run({x, y, z}, grid, body);
  block = nullptr;
  for (const std::byte* memory : allocations) check_guards(memory);
}

}  // namespace
}  // namespace emulated_cuda

struct CUgraph_st {
  std::vector<std::function<void()>> nodes;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> nodes;
};
struct CUstream_st {
  int unused;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};

namespace {

thread_local CUgraph_st* capturing = nullptr;

void now_or_captured(std::function<void()> work) {
  if (capturing != nullptr) capturing->nodes.push_back(std::move(work));
  else work();
}

}  // namespace

void emulated_cuda::launch(dim3 grid, dim3 threads, size_t shared_bytes, std::function<void()> body) {
  if (threads.x * threads.y * threads.z == 0 || shared_bytes > 232448) die("a launch that no device accepts");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) die("a grid no device accepts");
  now_or_captured([=, body = std::move(body)] { run_grid(grid, threads, shared_bytes, body); });
}

cudaError_t cudaGetDeviceCount(int* count) {
  return *count = 1, cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {"emulated", size_t{16} << 30, 9, 0, 4, 1 << 20, 232448};
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = *total = size_t{16} << 30, cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (bytes > size_t{16} << 30) return cudaErrorMemoryAllocation;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(1024, 1024 + (bytes + 2 * 1023) / 1024 * 1024 + 1024));
  if (memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(memory, emulated_cuda::kGuard, 1024);  // in front: the size, and guards on both sides
  std::memcpy(memory, &bytes, sizeof bytes);
  emulated_cuda::allocations.push_back(memory);
  *data = memory + 1024;
  std::memset(*data, 0xFF, bytes);
  std::memset(memory + 1024 + bytes, emulated_cuda::kGuard, emulated_cuda::kGuardBytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  auto* memory = static_cast<std::byte*>(data) - 1024;
  emulated_cuda::check_guards(memory);
  std::erase(emulated_cuda::allocations, memory);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, size_t bytes) {
  return cudaMalloc(data, bytes);
}
cudaError_t cudaFreeHost(void* data) {
  return cudaFree(data);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  now_or_captured([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t) {
  now_or_captured([=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = new CUstream_st{0}, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return delete stream, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new CUevent_st{}, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return delete event, cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  if (capturing == nullptr) event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  capturing = new CUgraph_st{};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = capturing;
  capturing = nullptr;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return *exec = new CUgraphExec_st{graph->nodes}, cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  if (emulated_cuda::graphs_fail) return cudaErrorLaunchFailure;
  for (const auto& node : exec->nodes) node();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return delete graph, cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return delete exec, cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaPeekAtLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess              ? "no error"
         : error == cudaErrorLaunchFailure ? "unspecified launch failure"
                                           : "out of memory";
}
