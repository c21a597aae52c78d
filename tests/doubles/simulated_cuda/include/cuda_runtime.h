// A simulated CUDA runtime: the functions that cuda_check.cu calls, in the host's memory, for a C++ compiler without
// CUDA. It tests the program's own logic, not drivers, links or speed: rates are those of the settings.
//
// As on GPUs, a kernel that accesses a peer's memory without enabled access, a stream of another device and a pointer of
// the wrong device are errors.
//
// Settings, from the environment; lists are separated by commas:
//   SIMULATED_CUDA_DEVICES    the number of devices (2)
//   SIMULATED_CUDA_ERROR      the number of the error with which cudaGetDeviceCount fails
//   SIMULATED_CUDA_FAIL       FUNCTION@DEVICE: the call fails as on a lost device; FUNCTION@DEVICE=NUMBER: with this
//                             error (one of NCCL's calls: this ncclResult_t)
//   SIMULATED_CUDA_NCCL_TEXT  what ncclGetLastError returns, as a whole
//   SIMULATED_CUDA_CRASH      FUNCTION@DEVICE: the call causes a segmentation fault
//   SIMULATED_CUDA_HANG       FUNCTION@DEVICE: the call does not return
//   SIMULATED_CUDA_WRONG      to@0, from@0, within@0: the last word of a copy is wrong; peer@0-1: a copy from 0 to 1
//                             copies nothing and succeeds; read@0-1: a kernel on 1 finds zeros in the memory of 0;
//                             kernel@0: kernels on 0 do nothing; sum@1: the all-reduce is wrong on rank 1
//   SIMULATED_CUDA_NO_PEER    0-1: these two cannot access each other's memory
//   SIMULATED_CUDA_FREE       bytes of free memory on each device
//   SIMULATED_CUDA_RATE       GB/s of the simulated copies with the host (25)
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <unistd.h>

#define SIMULATED_CUDA "this machine's memory in the place of GPUs"
#define CUDART_VERSION 13020
#define __global__
#define __host__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define LAUNCH(kernel, blocks, threads, stream, ...) \
  simulated_cuda::launch(kernel, (blocks), (threads), (stream), __VA_ARGS__)

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNvlinkUncorrectable = 220,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalState = 401,
  cudaErrorIllegalAddress = 700,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorPeerAccessNotEnabled = 705,
  cudaErrorSystemNotReady = 802,
  cudaErrorUnknown = 999,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaStreamNonBlocking = 1, cudaHostAllocPortable = 1 };

struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major, minor;
};
struct simulated_stream {
  int device;
};
struct simulated_event {
  int device;
  double seconds;
};
typedef simulated_stream *cudaStream_t;
typedef simulated_event *cudaEvent_t;

struct simulated_index {
  unsigned x;
};
static simulated_index blockIdx, threadIdx, blockDim, gridDim;

inline unsigned long long atomicAdd(unsigned long long *where, unsigned long long what) {
  const unsigned long long before = *where;
  *where += what;
  return before;
}

namespace simulated_cuda {

struct State {
  int current = 0;
  cudaError_t last = cudaSuccess;
  std::map<char *, std::pair<size_t, int>> memory;  // device memory: address, size and device
  std::set<std::pair<int, int>> peers;              // (a, b): a may touch b's memory now
  double clock = 0;                                 // seconds of simulated copies
};

inline State &state() {
  static State all;
  return all;
}

inline std::string knob(const char *name, const char *otherwise = "") {
  const char *value = std::getenv((std::string("SIMULATED_CUDA_") + name).c_str());
  return value != nullptr ? value : otherwise;
}

inline bool listed(const char *name, const std::string &entry) {
  return ("," + knob(name) + ",").find("," + entry + ",") != std::string::npos;
}

// The number after "FUNCTION@DEVICE=" in SIMULATED_CUDA_FAIL; 0 without one.
inline int chosen(const std::string &entry) {
  const std::string all = "," + knob("FAIL"), wanted = "," + entry + "=";
  const size_t found = all.find(wanted);
  return found == std::string::npos ? 0 : std::atoi(all.c_str() + found + wanted.size());
}

inline int devices() { return std::atoi(knob("DEVICES", "2").c_str()); }

inline cudaError_t keep(cudaError_t status) {
  if (status != cudaSuccess) state().last = status;
  return status;
}

// Apply the settings to a call on a device; -1 is the current one.
inline cudaError_t called(const char *function, int device = -1) {
  const int index = device < 0 ? state().current : device;
  const std::string entry = std::string(function) + "@" + std::to_string(index);
  if (index >= devices()) return keep(cudaErrorInvalidDevice);
  if (listed("CRASH", entry)) std::raise(SIGSEGV);
  while (listed("HANG", entry)) pause();
  return keep(listed("FAIL", entry) ? cudaErrorDevicesUnavailable : cudaError_t(chosen(entry)));
}

// The device that owns an address; -1 is the host.
inline int owner(const void *address) {
  char *const byte = (char *)address;
  auto entry = state().memory.upper_bound(byte);
  if (entry == state().memory.begin()) return -1;
  --entry;
  return byte < entry->first + entry->second.first ? entry->second.second : -1;
}

inline bool wrong(const std::string &what, int device) {
  return listed("WRONG", what + "@" + std::to_string(device));
}

inline bool wrong(const std::string &what, int from, int to) {
  return listed("WRONG", what + "@" + std::to_string(from) + "-" + std::to_string(to));
}

// A kernel's argument as seen by the device that runs it.
template <typename Value>
Value argument(Value value, bool *) {
  return value;
}

template <typename Value>
Value *argument(Value *address, bool *legal) {
  const int current = state().current, at = owner(address);
  if (at != current && state().peers.count({current, at}) == 0) *legal = false;
  if (at < 0 || at == current || !wrong("read", at, current)) return address;
  const auto entry = --state().memory.upper_bound((char *)address);
  return (Value *)std::calloc(entry->second.first, 1);
}

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, cudaStream_t stream, Arguments... given) {
  if (called("launch") != cudaSuccess) return;
  if (stream != nullptr && stream->device != state().current) {
    keep(cudaErrorInvalidResourceHandle);
    return;
  }
  if (wrong("kernel", state().current)) return;
  bool legal = true;
  auto run = [&](Arguments... found) {
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
      for (threadIdx.x = 0; legal && threadIdx.x < threads; ++threadIdx.x) kernel(found...);
    }
  };
  run(argument(given, &legal)...);
  if (!legal) keep(cudaErrorIllegalAddress);
}

inline cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  const int there = owner(to), here = owner(from);
  const bool upwards = kind == cudaMemcpyHostToDevice, downwards = kind == cudaMemcpyDeviceToHost;
  if ((there < 0) != downwards || (here < 0) != upwards) return keep(cudaErrorInvalidValue);
  std::memcpy(to, from, bytes);
  const char *const what = upwards ? "to" : downwards ? "from" : "within";
  const bool payload = bytes > sizeof(unsigned long long);  // and no counter of wrong words
  if (payload && wrong(what, std::max(there, here))) ((char *)to)[bytes - 1] ^= 1;
  const double rate = upwards || downwards ? std::atof(knob("RATE", "25").c_str()) : 1000;
  state().clock += double(bytes) / rate / 1e9;
  return cudaSuccess;
}

}  // namespace simulated_cuda

inline const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorDevicesUnavailable: return "cudaErrorDevicesUnavailable";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorECCUncorrectable: return "cudaErrorECCUncorrectable";
    case cudaErrorNvlinkUncorrectable: return "cudaErrorNvlinkUncorrectable";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorIllegalState: return "cudaErrorIllegalState";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorPeerAccessAlreadyEnabled: return "cudaErrorPeerAccessAlreadyEnabled";
    case cudaErrorPeerAccessNotEnabled: return "cudaErrorPeerAccessNotEnabled";
    case cudaErrorSystemNotReady: return "cudaErrorSystemNotReady";
    case cudaErrorUnknown: return "cudaErrorUnknown";
  }
  return "unrecognized error code";
}
inline const char *cudaGetErrorString(cudaError_t) { return "a \"simulated\" error"; }
inline cudaError_t cudaGetLastError() { return std::exchange(simulated_cuda::state().last, cudaSuccess); }

inline cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int *version) {
  *version = simulated_cuda::knob("ERROR").empty() ? 13030 : 0;
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int *count) {
  const std::string error = simulated_cuda::knob("ERROR");
  if (!error.empty()) return simulated_cuda::keep(cudaError_t(std::atoi(error.c_str())));
  *count = simulated_cuda::devices();
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
  const cudaError_t status = simulated_cuda::called("cudaSetDevice", device);
  if (status == cudaSuccess) simulated_cuda::state().current = device;
  return status;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
  *properties = cudaDeviceProp();
  std::snprintf(properties->name, sizeof properties->name, "Simulated GPU");
  for (int i = 0; i < 16; ++i) properties->uuid.bytes[i] = char(i == 15 ? device : 0xf0 + i);
  properties->totalGlobalMem = size_t(64) << 20;
  properties->major = 9;
  return simulated_cuda::called("cudaGetDeviceProperties", device);
}
inline cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
  std::snprintf(text, size_t(length), "0000:%02X:00.0", 0x1a + device);
  return simulated_cuda::called("cudaDeviceGetPCIBusId", device);
}

inline cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  *total = size_t(64) << 20;
  *free = size_t(std::atoll(simulated_cuda::knob("FREE", "60000000").c_str()));
  return simulated_cuda::called("cudaMemGetInfo");
}
inline cudaError_t cudaMalloc(void **address, size_t bytes) {
  *address = std::malloc(bytes);
  std::memset(*address, 0x5a, bytes);  // the content of new memory is undefined
  simulated_cuda::state().memory[(char *)*address] = {bytes, simulated_cuda::state().current};
  return simulated_cuda::called("cudaMalloc");
}
inline cudaError_t cudaFree(void *address) {
  simulated_cuda::state().memory.erase((char *)address);
  std::free(address);
  return simulated_cuda::called("cudaFree");
}
inline cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned) {
  *address = std::malloc(bytes);
  return simulated_cuda::called("cudaHostAlloc");
}
inline cudaError_t cudaFreeHost(void *address) {
  std::free(address);
  return simulated_cuda::called("cudaFreeHost");
}
inline cudaError_t cudaMemsetAsync(void *address, int value, size_t bytes, cudaStream_t) {
  if (simulated_cuda::owner(address) != simulated_cuda::state().current) {
    return simulated_cuda::keep(cudaErrorInvalidValue);
  }
  std::memset(address, value, bytes);
  return simulated_cuda::called("cudaMemsetAsync");
}
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  const cudaError_t status = simulated_cuda::called("cudaMemcpyAsync");
  return status != cudaSuccess ? status : simulated_cuda::copy(to, from, bytes, kind);
}
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  // Small control copies are not affected by the settings for wrong copies.
  std::memcpy(to, from, bytes);
  (void)kind;
  return simulated_cuda::called("cudaMemcpy");
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
  *stream = new simulated_stream{simulated_cuda::state().current};
  return simulated_cuda::called("cudaStreamCreateWithFlags");
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return simulated_cuda::called("cudaStreamSynchronize"); }
inline cudaError_t cudaEventCreate(cudaEvent_t *event) {
  *event = new simulated_event{simulated_cuda::state().current, 0};
  return simulated_cuda::called("cudaEventCreate");
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->device != stream->device) return simulated_cuda::keep(cudaErrorInvalidResourceHandle);
  event->seconds = simulated_cuda::state().clock;
  return simulated_cuda::called("cudaEventRecord");
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return simulated_cuda::called("cudaEventSynchronize"); }
inline cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = float((end->seconds - begin->seconds) * 1e3);
  return simulated_cuda::called("cudaEventElapsedTime");
}

inline cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  const std::string one = std::to_string(device) + "-" + std::to_string(peer);
  const std::string other = std::to_string(peer) + "-" + std::to_string(device);
  *can = !simulated_cuda::listed("NO_PEER", one) && !simulated_cuda::listed("NO_PEER", other);
  return simulated_cuda::called("cudaDeviceCanAccessPeer", device);
}
inline cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  const cudaError_t status = simulated_cuda::called("cudaDeviceEnablePeerAccess");
  if (status != cudaSuccess) return status;
  const bool fresh = simulated_cuda::state().peers.insert({simulated_cuda::state().current, peer}).second;
  return fresh ? cudaSuccess : simulated_cuda::keep(cudaErrorPeerAccessAlreadyEnabled);
}
inline cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  if (simulated_cuda::state().peers.erase({simulated_cuda::state().current, peer}) == 0) {
    return simulated_cuda::keep(cudaErrorPeerAccessNotEnabled);
  }
  return simulated_cuda::called("cudaDeviceDisablePeerAccess");
}
inline cudaError_t cudaMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t bytes, cudaStream_t) {
  if (simulated_cuda::owner(to) != there || simulated_cuda::owner(from) != here) {
    return simulated_cuda::keep(cudaErrorInvalidValue);
  }
  if (!simulated_cuda::wrong("peer", here, there)) std::memcpy(to, from, bytes);
  const bool direct = simulated_cuda::state().peers.count({here, there}) != 0;
  simulated_cuda::state().clock += double(bytes) / (direct ? 200 : 10) / 1e9;
  return simulated_cuda::called("cudaMemcpyPeerAsync");
}
