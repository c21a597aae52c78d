// A simulated cuDNN: its version and its handle. See cuda_runtime.h; SIMULATED_CUDA_FAIL and
// _CRASH accept cudnnCreate@0; _CRASH also cudnnGetVersion@0, which aborts like cuDNN 8 without one of its libraries.
#pragma once

#include <cuda_runtime.h>

enum cudnnStatus_t { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_NOT_INITIALIZED = 1001 };
struct simulated_cudnn;
typedef simulated_cudnn *cudnnHandle_t;

inline size_t cudnnGetVersion() {
  if (simulated_cuda::listed("CRASH", "cudnnGetVersion@0")) {
    std::fprintf(stderr, "Could not load library libcudnn_ops_infer.so.8. (simulated)\n");
    std::abort();
  }
  return 92800;
}
inline const char *cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_NOT_INITIALIZED";
}
inline cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  *handle = nullptr;
  return simulated_cuda::called("cudnnCreate") == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_INITIALIZED;
}
inline cudnnStatus_t cudnnDestroy(cudnnHandle_t) { return CUDNN_STATUS_SUCCESS; }
