#include <hip/hip_runtime.h>

template <typename I, typename V>
struct Csr {
  const I* __restrict__ offsets;
  const I* __restrict__ columns;
  const V* __restrict__ values;
  __device__ I begin(I row) const { return offsets[row]; }
  __device__ I end(I row) const { return offsets[row + 1]; }
  __device__ const V& operator[](I at) const { return values[at]; }
};

template <typename V>
struct Accessor {
  V* at;
  __device__ V& operator[](int i) const {
    atomicAdd(reinterpret_cast<unsigned*>(at) - 1, 1u);
    return at[i];
  }
};

__global__ void csr_scalar(Csr<int, double> m, const double* __restrict__ x, double* __restrict__ y, int rows) {
  const int stride = gridDim.x * blockDim.x;
  for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += stride) {
    double sum = 0.0;
    for (int j = m.begin(row); j < m.end(row); ++j) sum = fma(m[j], x[m.columns[j]], sum);
    y[row] = sum;
  }
}

__global__ void csr_counted(Csr<int, float> m, Accessor<float> x, float* y, int rows) {
  for (int row = threadIdx.x; row < rows; row += blockDim.x) y[row] += 1.0f;
  for (int row = threadIdx.x; row < rows; row += blockDim.x) y[row] += x[row];
}

__global__ void csr_vector(const int* offsets, const int* columns, const float* values, const float* x, float* y, int rows) {
  const int lane = threadIdx.x & 63;
  for (int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 6; row < rows; row += (gridDim.x * blockDim.x) >> 6) {
    float sum = 0;
    for (int j = offsets[row] + lane; j < offsets[row + 1]; j += 64) sum += values[j] * __ldg(&x[columns[j]]);
    for (int d = 32; d; d >>= 1) sum += __shfl_xor(sum, d, 64);
    if (!lane) y[row] = sum;
  }
}
