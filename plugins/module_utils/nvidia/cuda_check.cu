// cuda_check: test and measure the GPUs of this host; print one JSON document on standard output.
//
//   nvcc -o cuda_check cuda_check.cu -DWITH_NCCL -lnccl -DWITH_CUDNN -lcudnn && ./cuda_check
//
// Works with CUDA 10.1 and later, cuDNN 7 to 9, NCCL 2.4 and later. To build without cuDNN or NCCL, omit its -D and -l
// options. Bandwidths are in GB/s (10^9 bytes per second). A copy of S bytes within a device counts 2 S, since they are
// read and written. The bus bandwidth of the all-reduce is defined as in nccl-tests (doc/PERFORMANCE.md):
// S / t * 2 (n - 1) / n.
//
// With --contexts-only 1 it opens each device, runs a kernel on it, and leaves out copies, pairs and the libraries.
//
// An error of one device or pair is reported with it; the others are tested all the same. Even after a crash or a hang
// in a library the document is printed, and its "unfinished" names the step. Exit status: 0, also without a device; 1
// if the document is unfinished; 2 for bad usage.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

#include <cuda_runtime.h>
#ifdef WITH_CUDNN
#include <cudnn.h>
#endif
#ifdef WITH_NCCL
#include <nccl.h>
#endif

// A macro, so that a test double can run the kernels without nvcc.
#ifndef LAUNCH
#define LAUNCH(kernel, blocks, threads, stream, ...) kernel<<<(blocks), (threads), 0, (stream)>>>(__VA_ARGS__)
#endif

// Options --------------------------------------------------------------------------------------------------------

static const size_t SMALLEST = 1 << 20;
static const int BLOCKS = 512, THREADS = 256;

struct Options {
  size_t bytes = size_t(128) << 20;  // of each transfer; less if little device memory is free
  int repetitions = 5;
  int time_limit = 90;  // seconds
  int contexts_only = 0;  // 1: only open each device and run a kernel on it
};

static Options options;

// The document ---------------------------------------------------------------------------------------------------

static std::string quoted(const std::string &text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    char escaped[8];
    if (c == '"' || c == '\\') {
      out += '\\';
      out += char(c);
    } else if (c < 0x20 || c >= 0x7f) {  // no known name has bytes above ASCII: escape each
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
    } else {
      out += char(c);
    }
  }
  return out + "\"";
}

static std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return std::isfinite(value) ? text : "null";
}

static std::string number(unsigned long long value) { return std::to_string(value); }
static std::string number(int value) { return std::to_string(value); }
static std::string boolean(bool value) { return value ? "true" : "false"; }

static std::string joined(const std::vector<std::string> &parts) {
  std::string out;
  for (const std::string &part : parts) out += (out.empty() ? "" : ", ") + part;
  return out;
}

// The first error of a sequence of calls; `call` is empty if there was none.
struct Error {
  std::string call;
  int number = 0;
  std::string name, message;

  explicit operator bool() const { return !call.empty(); }
  std::string json() const {
    if (call.empty()) return "null";
    return "{\"call\": " + quoted(call) + ", \"number\": " + ::number(number) + ", \"name\": " + quoted(name) +
           ", \"message\": " + quoted(message) + "}";
  }
};

struct Document {
  std::string versions = "{}";
  std::string libraries = "null";  // the files of CUDA's libraries that this process has mapped
  Error error;  // why there is no device at all
  bool counted = false;
  std::vector<std::string> devices, peers;
  std::string cudnn = "null", all_reduce = "null";

  std::string head() const {
#ifdef SIMULATED_CUDA
    const std::string simulated = quoted(SIMULATED_CUDA);
#else
    const std::string simulated = "null";
#endif
    const std::string outcome = !counted ? "null" : error ? "\"no device\"" : "\"devices\"";
    return "{\"schema\": 1,\n \"simulated\": " + simulated + ",\n \"versions\": " + versions + ",\n \"libraries\": " +
           libraries + ",\n \"outcome\": " + outcome + ",\n \"error\": " + error.json() + ",\n \"devices\": [" + lines(devices) + "],\n \"peers\": [" +
           lines(peers) + "],\n \"cudnn\": " + cudnn + ",\n \"all_reduce\": " + all_reduce + ",\n \"unfinished\": ";
  }

 private:
  static std::string lines(const std::vector<std::string> &entries) {
    std::string out;
    for (const std::string &entry : entries) out += (out.empty() ? "\n  " : ",\n  ") + entry;
    return out;
  }
};

static Document document;

// A signal handler must not allocate, so its text is prepared before each step that can hang or crash.
struct Pending {
  std::string head;
};

static Pending *volatile pending = nullptr;
static int output = STDOUT_FILENO;

static void write_all(const char *text, size_t length) {
  while (length > 0) {
    const ssize_t written = write(output, text, length);
    if (written <= 0) return;
    text += written;
    length -= size_t(written);
  }
}

static void step(const std::string &name) {
  pending = new Pending{document.head() + "{\"step\": " + quoted(name) + ", \"signal\": "};
}

extern "C" void end_unfinished(int signal_number) {
  const Pending *text = pending;
  const char digits[] = {char('0' + signal_number / 10 % 10), char('0' + signal_number % 10)};
  const bool two = signal_number >= 10;
  write_all(text->head.data(), text->head.size());
  write_all(two ? digits : digits + 1, two ? 2 : 1);
  write_all("}}\n", 3);
  _exit(1);
}

// CUDA, checked --------------------------------------------------------------------------------------------------

static Error failure(const char *call, cudaError_t status) {
  Error error;
  error.call = std::string(call).substr(0, std::strcspn(call, "("));
  error.number = int(status);
  error.name = cudaGetErrorName(status);
  error.message = cudaGetErrorString(status);
  (void)cudaGetLastError();  // otherwise the next check would find this error again
  return error;
}

// Return from a function of type Error if a call fails.
#define TRY(call)                                               \
  do {                                                          \
    const cudaError_t status_ = (call);                         \
    if (status_ != cudaSuccess) return failure(#call, status_); \
  } while (0)
// An earlier error of a library is not the kernel's: discard it.
#define TRY_LAUNCH(kernel, stream, ...)                                       \
  do {                                                                        \
    (void)cudaGetLastError();                                                 \
    LAUNCH(kernel, BLOCKS, THREADS, stream, __VA_ARGS__);                     \
    const cudaError_t status_ = cudaGetLastError();                           \
    if (status_ != cudaSuccess) return failure("launch of " #kernel, status_); \
  } while (0)
#define TRY_ALL(expression)                \
  do {                                     \
    const Error error_ = (expression);     \
    if (error_) return error_;             \
  } while (0)

// The resources of a device, in use as long as the program runs; the end of the process frees them.
struct Device {
  int index = 0;
  size_t bytes = 0;  // of each of the two buffers
  unsigned *a = nullptr, *b = nullptr;
  unsigned long long *wrong = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  bool usable = false;
};

// The result of moving data.
struct Transfer {
  Error error;
  size_t bytes = 0;
  bool checked = false;
  unsigned long long wrong = 0;  // number of 32-bit words that differ from what was sent
  double seconds = 0;            // per repetition
  double counted = 1;            // how often each byte counts

  std::string json() const {
    const double rate = seconds > 0 ? counted * double(bytes) / seconds / 1e9 : NAN;
    return "{\"bytes\": " + number((unsigned long long)bytes) + ", \"right\": " +
           boolean(checked && wrong == 0 && !error) + ", \"wrong_words\": " + (checked ? number(wrong) : "null") +
           ", \"gb_per_second\": " + number(rate) + ", \"error\": " + error.json() + "}";
  }
};

// Depends on all bits of the place, so that data from another place or of an earlier pattern are detected.
__host__ __device__ __forceinline__ unsigned word_at(size_t place, unsigned seed) {
  unsigned x = unsigned(place) * 2654435761u + seed * 2246822519u + 1u;
  x ^= x >> 15;
  x *= 2246822519u;
  return x ^ (x >> 13);
}

// For up to 180 devices, terms and sums of the all-reduce are integers below 2^24: exact in float, in any order.
static const int TERMS = 1021;

__host__ __device__ inline float term_at(size_t place, int factor) {
  return float(factor) * float(int(place % TERMS) + 1);
}

__global__ void add_one(int *x) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *x += 1;
}

__global__ void fill(unsigned *data, size_t count, unsigned seed) {
  const size_t step = size_t(gridDim.x) * blockDim.x;
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) data[i] = word_at(i, seed);
}

__global__ void count_wrong(const unsigned *data, size_t count, unsigned seed, unsigned long long *wrong) {
  const size_t step = size_t(gridDim.x) * blockDim.x;
  unsigned long long mine = 0;
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    mine += data[i] != word_at(i, seed);
  }
  if (mine != 0) atomicAdd(wrong, mine);
}

__global__ void fill_terms(float *data, size_t count, int factor) {
  const size_t step = size_t(gridDim.x) * blockDim.x;
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) data[i] = term_at(i, factor);
}

__global__ void count_wrong_sums(const float *data, size_t count, int sum_of_factors, unsigned long long *wrong) {
  const size_t step = size_t(gridDim.x) * blockDim.x;
  unsigned long long mine = 0;
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    mine += data[i] != term_at(i, sum_of_factors);
  }
  if (mine != 0) atomicAdd(wrong, mine);
}

// Count the wrong words in `data` with a kernel on the device; `data` may be on a peer.
static Error compare(const Device &device, const unsigned *data, size_t bytes, unsigned seed, Transfer *transfer) {
  TRY(cudaSetDevice(device.index));
  TRY(cudaMemsetAsync(device.wrong, 0, sizeof *device.wrong, device.stream));
  TRY_LAUNCH(count_wrong, device.stream, data, bytes / sizeof *data, seed, device.wrong);
  unsigned long long wrong = 0;
  TRY(cudaMemcpyAsync(&wrong, device.wrong, sizeof wrong, cudaMemcpyDeviceToHost, device.stream));
  TRY(cudaStreamSynchronize(device.stream));
  transfer->wrong = wrong;
  transfer->checked = true;
  return Error();
}

static Error set(const Device &device, unsigned *data, size_t bytes, unsigned seed) {
  TRY(cudaSetDevice(device.index));
  TRY_LAUNCH(fill, device.stream, data, bytes / sizeof *data, seed);
  TRY(cudaStreamSynchronize(device.stream));
  return Error();
}

// Run `copy(stream)`, which returns an Error, once to warm up, then timed between two events.
template <typename Copy>
static Error timed(const Device &device, const Copy &copy, Transfer *transfer) {
  TRY(cudaSetDevice(device.index));
  TRY_ALL(copy(device.stream));
  TRY(cudaEventRecord(device.begin, device.stream));
  for (int i = 0; i < options.repetitions; ++i) TRY_ALL(copy(device.stream));
  TRY(cudaEventRecord(device.end, device.stream));
  TRY(cudaEventSynchronize(device.end));
  float milliseconds = 0;
  TRY(cudaEventElapsedTime(&milliseconds, device.begin, device.end));
  transfer->seconds = double(milliseconds) / 1e3 / options.repetitions;
  return Error();
}

// One device ------------------------------------------------------------------------------------------------------

static Error describe(int index, std::vector<std::string> *fields) {
  cudaDeviceProp properties;
  TRY(cudaGetDeviceProperties(&properties, index));
  char bus_id[32] = "";
  TRY(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index));
  std::string uuid = "GPU";
  for (int i = 0; i < 16; ++i) {
    char byte[4];
    const bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    std::snprintf(byte, sizeof byte, dash ? "-%02x" : "%02x", (unsigned)(unsigned char)properties.uuid.bytes[i]);
    uuid += byte;
  }
  const std::string capability = number(properties.major) + "." + number(properties.minor);
  fields->push_back("\"name\": " + quoted(properties.name));
  fields->push_back("\"compute_capability\": " + quoted(capability));
  fields->push_back("\"memory_bytes\": " + number((unsigned long long)properties.totalGlobalMem));
  fields->push_back("\"pci_bus_id\": " + quoted(bus_id));
  fields->push_back("\"uuid\": " + quoted(uuid));
  return Error();
}

static Error compute(int index, bool *right) {
  TRY(cudaSetDevice(index));
  int host = 41, *x = nullptr;
  TRY(cudaMalloc((void **)&x, sizeof host));
  TRY(cudaMemcpy(x, &host, sizeof host, cudaMemcpyHostToDevice));
  TRY_LAUNCH(add_one, nullptr, x);
  TRY(cudaMemcpy(&host, x, sizeof host, cudaMemcpyDeviceToHost));
  TRY(cudaFree(x));
  *right = host == 42;
  return Error();
}

static Error prepare(Device *device) {
  TRY(cudaSetDevice(device->index));
  size_t free = 0, total = 0;
  TRY(cudaMemGetInfo(&free, &total));
  const size_t page = 4096;
  device->bytes = std::min(options.bytes, free / 8) / page * page;
  if (device->bytes < std::min(SMALLEST, options.bytes)) {
    Error error = failure("cudaMemGetInfo", cudaErrorMemoryAllocation);
    error.message = "only " + number((unsigned long long)free) + " of " + number((unsigned long long)total) +
                    " bytes of device memory are free";
    return error;
  }
  TRY(cudaMalloc((void **)&device->a, device->bytes));
  TRY(cudaMalloc((void **)&device->b, device->bytes));
  TRY(cudaMalloc((void **)&device->wrong, sizeof *device->wrong));
  TRY(cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking));
  TRY(cudaEventCreate(&device->begin));
  TRY(cudaEventCreate(&device->end));
  return Error();
}

// These two loops alone are optimized: nvcc takes half as long for the program without -O2.
#define OPTIMIZED __attribute__((optimize("O2")))

OPTIMIZED static void fill_host(unsigned *data, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; ++i) data[i] = word_at(i, seed);
}

OPTIMIZED static unsigned long long count_wrong_host(const unsigned *data, size_t count, unsigned seed) {
  unsigned long long wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += data[i] != word_at(i, seed);
  return wrong;
}

static Error host_to_device(const Device &device, unsigned *host, Transfer *transfer) {
  const unsigned seed = 1000 + unsigned(device.index);
  fill_host(host, device.bytes / sizeof *host, seed);
  TRY_ALL(set(device, device.a, device.bytes, ~seed));
  TRY_ALL(timed(device, [&](cudaStream_t stream) -> Error {
    TRY(cudaMemcpyAsync(device.a, host, device.bytes, cudaMemcpyHostToDevice, stream));
    return Error();
  }, transfer));
  return compare(device, device.a, device.bytes, seed, transfer);
}

static Error device_to_host(const Device &device, unsigned *host, Transfer *transfer) {
  const unsigned seed = 2000 + unsigned(device.index);
  TRY_ALL(set(device, device.a, device.bytes, seed));
  std::memset(host, 0, device.bytes);
  TRY_ALL(timed(device, [&](cudaStream_t stream) -> Error {
    TRY(cudaMemcpyAsync(host, device.a, device.bytes, cudaMemcpyDeviceToHost, stream));
    return Error();
  }, transfer));
  transfer->wrong += count_wrong_host(host, device.bytes / sizeof *host, seed);
  transfer->checked = true;
  return Error();
}

static Error device_to_device(const Device &device, Transfer *transfer) {
  const unsigned seed = 3000 + unsigned(device.index);
  transfer->counted = 2;
  TRY_ALL(set(device, device.a, device.bytes, seed));
  TRY_ALL(set(device, device.b, device.bytes, ~seed));
  TRY_ALL(timed(device, [&](cudaStream_t stream) -> Error {
    TRY(cudaMemcpyAsync(device.b, device.a, device.bytes, cudaMemcpyDeviceToDevice, stream));
    return Error();
  }, transfer));
  return compare(device, device.b, device.bytes, seed, transfer);
}

static std::string copies(const Device &device) {
  Transfer to, from, within;
  to.bytes = from.bytes = within.bytes = device.bytes;
  unsigned *host = nullptr;
  cudaError_t status = cudaSetDevice(device.index);
  if (status == cudaSuccess) status = cudaHostAlloc((void **)&host, device.bytes, cudaHostAllocPortable);
  if (status == cudaSuccess) {
    to.error = host_to_device(device, host, &to);
    from.error = device_to_host(device, host, &from);
    status = cudaFreeHost(host);
    if (status != cudaSuccess && !from.error) from.error = failure("cudaFreeHost", status);
  } else {
    to.error = from.error = failure("cudaHostAlloc", status);
  }
  within.error = device_to_device(device, &within);
  return "{\"host_to_device\": " + to.json() + ", \"device_to_host\": " + from.json() + ", \"device_to_device\": " +
         within.json() + "}";
}

static Device examine(int index) {
  const std::string name = "device " + number(index);
  Device device;
  device.index = index;
  std::vector<std::string> fields = {"\"index\": " + number(index)};
  bool right = false;
  step(name + ": properties");
  Error error = describe(index, &fields);
  step(name + ": a kernel");
  const Error kernel_error = compute(index, &right);
  fields.push_back("\"kernel\": {\"right\": " + boolean(right) + ", \"error\": " + kernel_error.json() + "}");
  if (!options.contexts_only) {
    step(name + ": copies");
    if (!error && !kernel_error) error = prepare(&device);
    device.usable = !error && !kernel_error && right;
  }
  fields.push_back("\"copies\": " + (device.usable ? copies(device) : std::string("null")));
  fields.push_back("\"error\": " + error.json());
  document.devices.push_back("{" + joined(fields) + "}");
  return device;
}

// Pairs of devices -------------------------------------------------------------------------------------------------

static Error enable(int index, int peer) {
  TRY(cudaSetDevice(index));
  TRY(cudaDeviceEnablePeerAccess(peer, 0));
  return Error();
}

static Error disable(int index, int peer) {
  TRY(cudaSetDevice(index));
  TRY(cudaDeviceDisablePeerAccess(peer));
  return Error();
}

// The source pushes. Without peer access the driver stages the data in host memory. Each pair has its own seed, so that
// data left by another copy are not mistaken for this one's.
static Error copy_to_peer(const Device &from, const Device &to, Transfer *transfer) {
  const unsigned seed = 4000 + 64 * unsigned(from.index) + unsigned(to.index);
  TRY_ALL(set(from, from.a, transfer->bytes, seed));
  TRY_ALL(timed(from, [&](cudaStream_t stream) -> Error {
    TRY(cudaMemcpyPeerAsync(to.b, to.index, from.a, from.index, transfer->bytes, stream));
    return Error();
  }, transfer));
  return compare(to, to.b, transfer->bytes, seed, transfer);
}

// A kernel on `to` reads the memory of `from`, as NCCL's kernels do.
static Error read_from_peer(const Device &from, const Device &to, Transfer *transfer) {
  const unsigned seed = 5000 + 64 * unsigned(from.index) + unsigned(to.index);
  TRY_ALL(set(from, from.a, transfer->bytes, seed));
  return compare(to, from.a, transfer->bytes, seed, transfer);
}

static void examine_pair(const Device &from, const Device &to) {
  step("device " + number(from.index) + " to device " + number(to.index));
  int access = 0, back = 0;
  Error error;
  cudaError_t status = cudaDeviceCanAccessPeer(&access, from.index, to.index);
  if (status == cudaSuccess) status = cudaDeviceCanAccessPeer(&back, to.index, from.index);
  if (status != cudaSuccess) error = failure("cudaDeviceCanAccessPeer", status);

  Transfer copy, read;
  copy.bytes = read.bytes = std::min(from.bytes, to.bytes);
  bool enabled = false, enabled_back = false;
  if (!error && access) {
    error = enable(from.index, to.index);
    enabled = !error;
  }
  if (!error && back) {
    error = enable(to.index, from.index);
    enabled_back = !error;
  }
  const bool made = !error;
  if (made) copy.error = copy_to_peer(from, to, &copy);
  if (made && back) read.error = read_from_peer(from, to, &read);
  // Always disable what was enabled; otherwise the next pair would find it enabled.
  const Error disabled = enabled ? disable(from.index, to.index) : Error();
  const Error disabled_back = enabled_back ? disable(to.index, from.index) : Error();
  if (!error) error = disabled ? disabled : disabled_back;
  document.peers.push_back("{\"from\": " + number(from.index) + ", \"to\": " + number(to.index) + ", \"access\": " +
                           boolean(access != 0) + ", \"copy\": " + (made ? copy.json() : "null") +
                           ", \"read\": " + (made && back ? read.json() : "null") + ", \"error\": " +
                           error.json() + "}");
}

// All devices together ---------------------------------------------------------------------------------------------

#ifdef WITH_CUDNN
static std::string examine_cudnn(const Device &device) {
  step("cudnnCreate");
  Error error;
  cudnnHandle_t handle = nullptr;
  const cudaError_t status = cudaSetDevice(device.index);
  if (status != cudaSuccess) {
    error = failure("cudaSetDevice", status);
  } else {
    cudnnStatus_t created = cudnnCreate(&handle);
    const bool made = created == CUDNN_STATUS_SUCCESS;
    if (made) created = cudnnDestroy(handle);
    if (created != CUDNN_STATUS_SUCCESS) {
      error.call = made ? "cudnnDestroy" : "cudnnCreate";
      error.number = int(created);
      error.name = error.message = cudnnGetErrorString(created);
    }
  }
  return "{\"device\": " + number(device.index) + ", \"error\": " + error.json() + "}";
}
#endif

#ifdef WITH_NCCL
static Error nccl_failure(const char *call, ncclResult_t status) {
  Error error;
  error.call = std::string(call).substr(0, std::strcspn(call, "("));
  error.number = int(status);
  error.name = error.message = ncclGetErrorString(status);
#if NCCL_VERSION_CODE >= 21300
  const char *last = ncclGetLastError(nullptr);
  if (last != nullptr && *last != '\0') error.message = last;
#endif
  return error;
}

#define TRY_NCCL(call)                                               \
  do {                                                               \
    const ncclResult_t status_ = (call);                             \
    if (status_ != ncclSuccess) return nccl_failure(#call, status_); \
  } while (0)

struct AllReduce {
  std::vector<Device> devices;
  std::vector<ncclComm_t> communicators;
  size_t bytes = 0;
  std::vector<unsigned long long> wrong;  // number of 32-bit words by device; empty if not compared
  double seconds = 0;

  size_t count() const { return bytes / sizeof(float); }

  Error fill_all() const {
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      const Device &device = devices[rank];
      TRY(cudaSetDevice(device.index));
      TRY_LAUNCH(fill_terms, device.stream, (float *)device.a, count(), int(rank) + 1);
      TRY(cudaMemsetAsync(device.b, 0, bytes, device.stream));
      TRY(cudaStreamSynchronize(device.stream));
    }
    return Error();
  }

  Error enqueue() const {
    TRY_NCCL(ncclGroupStart());
    ncclResult_t status = ncclSuccess;
    for (size_t rank = 0; rank < devices.size() && status == ncclSuccess; ++rank) {
      const Device &device = devices[rank];
      status = ncclAllReduce(device.a, device.b, count(), ncclFloat, ncclSum, communicators[rank], device.stream);
    }
    const ncclResult_t ended = ncclGroupEnd();
    if (status != ncclSuccess) return nccl_failure("ncclAllReduce", status);
    if (ended != ncclSuccess) return nccl_failure("ncclGroupEnd", ended);
    return Error();
  }

  Error wait() const {
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      TRY(cudaSetDevice(devices[rank].index));
      TRY(cudaStreamSynchronize(devices[rank].stream));
      ncclResult_t asynchronous = ncclSuccess;
      TRY_NCCL(ncclCommGetAsyncError(communicators[rank], &asynchronous));
      if (asynchronous != ncclSuccess) return nccl_failure("ncclAllReduce", asynchronous);
    }
    return Error();
  }

  Error check() {
    const int n = int(devices.size());
    std::vector<unsigned long long> found;
    for (const Device &device : devices) {
      TRY(cudaSetDevice(device.index));
      TRY(cudaMemsetAsync(device.wrong, 0, sizeof *device.wrong, device.stream));
      TRY_LAUNCH(count_wrong_sums, device.stream, (const float *)device.b, count(), n * (n + 1) / 2, device.wrong);
      unsigned long long words = 0;
      TRY(cudaMemcpyAsync(&words, device.wrong, sizeof words, cudaMemcpyDeviceToHost, device.stream));
      TRY(cudaStreamSynchronize(device.stream));
      found.push_back(words);
    }
    wrong.resize(found.size());
    for (size_t rank = 0; rank < found.size(); ++rank) wrong[rank] += found[rank];
    return Error();
  }

  Error run() {
    std::vector<int> indices;
    for (const Device &device : devices) indices.push_back(device.index);
    communicators.resize(devices.size());
    TRY_NCCL(ncclCommInitAll(communicators.data(), int(devices.size()), indices.data()));
    TRY_ALL(fill_all());
    TRY_ALL(enqueue());
    TRY_ALL(wait());
    TRY_ALL(check());
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < options.repetitions; ++i) TRY_ALL(enqueue());
    TRY_ALL(wait());
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    seconds = passed.count() / options.repetitions;
    TRY_ALL(check());
    for (ncclComm_t communicator : communicators) TRY_NCCL(ncclCommDestroy(communicator));
    return Error();
  }
};

static std::string examine_all_reduce(const std::vector<Device> &devices) {
  step("all-reduce of " + number(int(devices.size())) + " devices");
  AllReduce all;
  all.devices = devices;
  all.bytes = devices.front().bytes;
  std::vector<std::string> indices, wrong;
  for (const Device &device : devices) {
    all.bytes = std::min(all.bytes, device.bytes);
    indices.push_back(number(device.index));
  }
  const Error error = all.run();
  bool right = !error && all.wrong.size() == devices.size();
  for (unsigned long long words : all.wrong) {
    right = right && words == 0;
    wrong.push_back(number(words));
  }
  const double n = double(devices.size());
  const double rate = all.seconds > 0 ? double(all.bytes) / all.seconds / 1e9 : NAN;
  const double bus = n > 1 ? rate * 2 * (n - 1) / n : NAN;  // a single device sends nothing
  return "{\"devices\": [" + joined(indices) + "], \"bytes\": " + number((unsigned long long)all.bytes) +
         ", \"right\": " + boolean(right) + ", \"wrong_words\": [" + joined(wrong) +
         "], \"algorithm_gb_per_second\": " + number(rate) + ", \"bus_gb_per_second\": " + number(bus) +
         ", \"error\": " + error.json() + "}";
}
#endif

// ------------------------------------------------------------------------------------------------------------------

static void examine_versions() {
  step("versions");
  std::vector<std::string> parts;
  int runtime = 0, driver = 0;
  // Up to CUDA 11 the runtime reports its version only with a driver. nvcc links it statically: it is the headers'.
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = CUDART_VERSION;
  parts.push_back("\"cuda\": " + number(runtime));
  // The newest CUDA version that the driver supports; 0 without a driver.
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  parts.push_back("\"driver_api\": " + number(driver));
  (void)cudaGetLastError();
  document.versions = "{" + joined(parts) + "}";
#ifdef WITH_CUDNN
  step("cudnnGetVersion");  // cuDNN 8 aborts here if one of its own libraries is missing
  parts.push_back("\"cudnn\": " + number((unsigned long long)cudnnGetVersion()));
  document.versions = "{" + joined(parts) + "}";
#endif
#ifdef WITH_NCCL
  step("ncclGetVersion");
  int nccl = 0;
  const ncclResult_t status = ncclGetVersion(&nccl);
  parts.push_back("\"nccl\": " + (status == ncclSuccess ? number(nccl) : std::string("null")));
  document.versions = "{" + joined(parts) + "}";
#endif
}

static void examine_libraries() {
  std::vector<std::string> paths;
  FILE *maps = std::fopen("/proc/self/maps", "r");
  if (maps == nullptr) return;
  char *text = nullptr;
  size_t size = 0;
  while (getline(&text, &size, maps) > 0) {
    const std::string line(text, std::strcspn(text, "\n"));
    const size_t start = line.find('/');
    if (start == std::string::npos) continue;
    const std::string path = quoted(line.substr(start)), file = line.substr(line.rfind('/') + 1);
    for (const char *name : {"libcudart", "libcudnn", "libnccl"}) {
      const bool matches = file.compare(0, std::strlen(name), name) == 0;
      if (matches && std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
    }
  }
  std::free(text);
  std::fclose(maps);
  std::sort(paths.begin(), paths.end());
  document.libraries = "[" + joined(paths) + "]";
}

static void examine_all() {
  examine_versions();
  examine_libraries();
  step("cudaGetDeviceCount");
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  document.counted = true;
  if (status != cudaSuccess) {
    document.error = failure("cudaGetDeviceCount", status);
    return;
  }
  std::vector<Device> usable;
  for (int index = 0; index < count; ++index) {
    const Device device = examine(index);
    if (device.usable) usable.push_back(device);
  }
  for (const Device &from : usable) {
    for (const Device &to : usable) {
      if (from.index != to.index) examine_pair(from, to);
    }
  }
  if (usable.empty()) return;
#ifdef WITH_CUDNN
  document.cudnn = examine_cudnn(usable.front());
#endif
#ifdef WITH_NCCL
  document.all_reduce = examine_all_reduce(usable);
#endif
}

static bool parse(int words, char **word) {
  for (int i = 1; i + 1 < words; i += 2) {
    char *end = nullptr;
    const long long value = std::strtoll(word[i + 1], &end, 10);
    if (*end != '\0' || value <= 0) return false;
    if (std::strcmp(word[i], "--bytes") == 0) {
      options.bytes = (size_t(value) + 4095) / 4096 * 4096;
    } else if (std::strcmp(word[i], "--repetitions") == 0) {
      options.repetitions = int(value);
    } else if (std::strcmp(word[i], "--time-limit") == 0) {
      options.time_limit = int(value);
    } else if (std::strcmp(word[i], "--contexts-only") == 0) {
      options.contexts_only = 1;
    } else {
      return false;
    }
  }
  return words % 2 == 1;
}

int main(int words, char **word) {
  if (!parse(words, word)) {
    std::fprintf(stderr, "usage: %s [--bytes N] [--repetitions N] [--time-limit SECONDS] [--contexts-only 1]\n", word[0]);
    return 2;
  }
  // NCCL prints its messages on standard output, which is reserved for the document.
  output = dup(STDOUT_FILENO);
  if (output < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    std::perror(word[0]);
    return 2;
  }
  step("start");
  for (int number : {SIGALRM, SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) std::signal(number, end_unfinished);
  alarm(unsigned(options.time_limit));
  examine_all();
  alarm(0);
  const std::string text = document.head() + "null}\n";
  write_all(text.data(), text.size());
  // Skip the libraries' cleanup, which may hang after a device failed.
  _exit(0);
}
