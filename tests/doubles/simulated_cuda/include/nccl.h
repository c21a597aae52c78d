// A simulated NCCL: an all-reduce that sums the devices' memory when its group ends. See cuda_runtime.h;
// SIMULATED_CUDA_FAIL, _CRASH and _HANG accept ncclCommInitAll@0 and ncclGroupEnd@0; _NCCL_TEXT is the last error.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#define NCCL_VERSION_CODE 22907

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidUsage = 5,
};
enum ncclDataType_t { ncclFloat = 7 };
enum ncclRedOp_t { ncclSum = 0 };
struct simulated_communicator {
  int rank, device, size;
};
typedef simulated_communicator *ncclComm_t;

namespace simulated_cuda {

struct Share {
  const float *terms;
  float *sums;
  size_t count;
  ncclComm_t communicator;
};

// The result of a call to which the settings apply.
inline ncclResult_t result(const char *function, int device) {
  const int number = chosen(std::string(function) + "@" + std::to_string(device));
  if (number != 0) return ncclResult_t(number);
  return called(function, device) == cudaSuccess ? ncclSuccess : ncclSystemError;
}

inline std::vector<Share> &group() {
  static std::vector<Share> shares;
  return shares;
}

}  // namespace simulated_cuda

inline ncclResult_t ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
inline const char *ncclGetErrorString(ncclResult_t status) {
  switch (status) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidUsage: return "invalid usage";
  }
  return "unknown result code";
}
inline const char *ncclGetLastError(ncclComm_t) {
  static const std::string text = simulated_cuda::knob("NCCL_TEXT", "simulated: no network interface was found");
  return text.c_str();
}
inline ncclResult_t ncclCommInitAll(ncclComm_t *communicators, int size, const int *devices) {
  std::printf("NCCL version simulated, printed where the document goes\n");
  const ncclResult_t begun = simulated_cuda::result("ncclCommInitAll", devices[0]);
  if (begun != ncclSuccess) return begun;
  for (int rank = 0; rank < size; ++rank) {
    communicators[rank] = new simulated_communicator{rank, devices[rank], size};
  }
  return ncclSuccess;
}
inline ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
}
inline ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *status) {
  *status = ncclSuccess;
  return ncclSuccess;
}
inline ncclResult_t ncclGroupStart() {
  simulated_cuda::group().clear();
  return ncclSuccess;
}
inline ncclResult_t ncclAllReduce(const void *terms, void *sums, size_t count, ncclDataType_t, ncclRedOp_t,
                                  ncclComm_t communicator, cudaStream_t stream) {
  const int device = communicator->device;
  const bool mine = simulated_cuda::owner(terms) == device && simulated_cuda::owner(sums) == device;
  if (!mine || stream->device != device) return ncclInvalidUsage;
  simulated_cuda::group().push_back({(const float *)terms, (float *)sums, count, communicator});
  return ncclSuccess;
}
inline ncclResult_t ncclGroupEnd() {
  const std::vector<simulated_cuda::Share> &group = simulated_cuda::group();
  const ncclResult_t ended = simulated_cuda::result("ncclGroupEnd", group.front().communicator->device);
  if (ended != ncclSuccess) return ended;
  if (int(group.size()) != group.front().communicator->size) return ncclInvalidUsage;
  for (const simulated_cuda::Share &share : group) {
    for (size_t i = 0; i < share.count; ++i) {
      float sum = 0;
      for (const simulated_cuda::Share &other : group) sum += other.terms[i];
      share.sums[i] = sum;
    }
    if (simulated_cuda::wrong("sum", share.communicator->rank)) share.sums[share.count - 1] += 1;
  }
  return ncclSuccess;
}
