/* A CUDA driver without a GPU: takes what triton's launchers call, runs nothing, and writes down every launch.
   A tensor map holds the address and the sizes that it was made of, so that a launch's parameters say what it reads. */
#include <stdint.h>
#include <string.h>

typedef int Result;
typedef struct { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned attribute_count; } Config;
enum { ENTRIES = 6 };

static uint64_t log_[4096][ENTRIES]; /* grid, stream, attributes, and the first four bytes of three parameters */
static int launches, maps;

int stub_launches(void) { return launches; }
int stub_maps(void) { return maps; }
uint64_t stub_logged(int launch, int entry) { return log_[launch % 4096][entry]; }

Result cuLaunchKernelEx(const Config *config, void *function, void **params, void **extra) {
  uint64_t *entry = log_[launches++ % 4096];
  entry[0] = config->grid[0];
  entry[1] = (uint64_t)config->stream;
  entry[2] = config->attribute_count;
  for (int i = 3; i < ENTRIES; i++) {
    entry[i] = 0;
    memcpy(&entry[i], params[i - 3], 4); /* what every parameter has at least: past its end lies anything */
  }
  return 0;
}
Result cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *sizes,
                              const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
                              int swizzle, int promotion, int fill) {
  maps++;
  memset(map, 0, 128);
  memcpy(map, &address, 8);
  memcpy((char *)map + 8, sizes, 8 * rank);
  return 0;
}
Result cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
Result cuCtxSetCurrent(void *context) { return 0; }
Result cuCtxGetLimit(size_t *value, int limit) { *value = 0; return 0; }
Result cuCtxSetLimit(int limit, size_t value) { return 0; }
Result cuCtxGetDevice(int *device) { *device = 0; return 0; }
Result cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
Result cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 232448; return 0; }
Result cuDeviceGetCount(int *count) { *count = 1; return 0; }
Result cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1; return 0; }
Result cuDriverGetVersion(int *version) { *version = 13020; return 0; }
Result cuFuncGetAttribute(int *value, int attribute, void *function) { *value = attribute == 0 ? 1024 : 0; return 0; }
Result cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
Result cuFuncSetCacheConfig(void *function, int config) { return 0; }
Result cuGetErrorString(int error, const char **text) { *text = "of the stub"; return 0; }
Result cuInit(unsigned flags) { return 0; }
Result cuModuleGetFunction(void **function, void *module, const char *name) { *function = (void *)7; return 0; }
Result cuModuleLoadData(void **module, const void *image) { *module = (void *)8; return 0; }
Result cuModuleUnload(void *module) { return 0; }
Result cuOccupancyMaxActiveClusters(int *count, void *function, const void *config) { *count = 1; return 0; }
Result cuPointerGetAttribute(void *data, int attribute, uint64_t pointer) { memcpy(data, &pointer, 8); return 0; }
Result cuStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
