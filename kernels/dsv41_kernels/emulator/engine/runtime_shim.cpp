// The C ABI FlyDSL's JIT-compiled host code calls to load and launch kernels (its own
// implementation wraps HIP). Loading and launching go to Python callbacks; the rest is host memory.
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" {

using LoadCallback = void *(*)(const void *data, size_t size);
using FunctionCallback = void *(*)(void *module, const char *name);
using LaunchCallback = void (*)(void *function, const int64_t *grid, const int64_t *block,
                                int32_t dynamic_lds, void **params, size_t count);
using OccupancyCallback = int (*)(const void *data, const char *name, int threads, size_t lds);
using MemoryCallback = void (*)(void *address, size_t size);

static struct {
  LoadCallback load;
  FunctionCallback function;
  LaunchCallback launch;
  OccupancyCallback occupancy;
  MemoryCallback allocated;
} callbacks;

void emu_set_callbacks(LoadCallback load, FunctionCallback function, LaunchCallback launch,
                       OccupancyCallback occupancy, MemoryCallback allocated) {
  callbacks = {load, function, launch, occupancy, allocated};
}

void *mgpuModuleLoad(void *data, size_t size) { return callbacks.load(data, size); }
void *mgpuModuleLoadJIT(void *, int) { return nullptr; }
void mgpuModuleUnload(void *) {}
void *mgpuModuleGetFunction(void *module, const char *name) {
  return callbacks.function(module, name);
}
int mgpuModuleOccupancyMaxActiveBlocks(const void *data, const char *name, int threads,
                                       size_t lds) {
  return callbacks.occupancy(data, name, threads, lds);
}

void mgpuLaunchKernel(void *function, intptr_t gx, intptr_t gy, intptr_t gz, intptr_t bx,
                      intptr_t by, intptr_t bz, int32_t lds, void *, void **params, void **,
                      size_t count) {
  const int64_t grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  callbacks.launch(function, grid, block, lds, params, count);
}
void mgpuLaunchClusterKernel(void *function, intptr_t, intptr_t, intptr_t, intptr_t gx,
                             intptr_t gy, intptr_t gz, intptr_t bx, intptr_t by, intptr_t bz,
                             int32_t lds, void *stream, void **params, void **extra,
                             size_t count) {
  mgpuLaunchKernel(function, gx, gy, gz, bx, by, bz, lds, stream, params, extra, count);
}

// Launches run to completion before they return, so streams and events have nothing to do.
void *mgpuStreamCreate() { return nullptr; }
void mgpuStreamDestroy(void *) {}
void mgpuStreamSynchronize(void *) {}
void mgpuStreamWaitEvent(void *, void *) {}
void *mgpuEventCreate() { return nullptr; }
void mgpuEventDestroy(void *) {}
void mgpuEventSynchronize(void *) {}
void mgpuEventRecord(void *, void *) {}
void mgpuSetDefaultDevice(int32_t) {}

void *mgpuMemAlloc(uint64_t size, void *, char) {
  void *memory = std::aligned_alloc(256, (size + 255) & ~255ull);
  if (memory) callbacks.allocated(memory, size);
  return memory;
}
void mgpuMemFree(void *memory, void *) {
  callbacks.allocated(memory, 0);
  std::free(memory);
}
void mgpuMemcpy(void *to, void *from, size_t size, void *) { std::memcpy(to, from, size); }
void mgpuMemset32(void *to, uint32_t value, size_t count, void *) {
  for (size_t i = 0; i < count; i++) static_cast<uint32_t *>(to)[i] = value;
}
void mgpuMemset16(void *to, uint16_t value, size_t count, void *) {
  for (size_t i = 0; i < count; i++) static_cast<uint16_t *>(to)[i] = value;
}

}  // extern "C"
