#include <hip/hip_runtime.h>

struct Body {
  float3 at;
  float mass;
};

__device__ __host__ inline float3 operator+(const float3& a, const float3& b) { return make_float3(a.x + b.x, a.y + b.y, a.z + b.z); }

__device__ float3 pull(float3 a, const Body& other, float3 at, float soft2) {
  const float dx = other.at.x - at.x, dy = other.at.y - at.y, dz = other.at.z - at.z;
  const float inv = rsqrtf(dx * dx + dy * dy + dz * dz + soft2);
  const float s = other.mass * inv * inv * inv;
  return a + make_float3(dx * s, dy * s, dz * s);
}

template <int P>
__global__ void __launch_bounds__(P) forces(const Body* __restrict__ bodies, float3* __restrict__ out, int n, float soft2) {
  __shared__ Body tile[P];
  const int i = blockIdx.x * P + threadIdx.x;
  const float3 at = bodies[i].at;
  float3 acc{0.f, 0.f, 0.f};
  for (int t = 0; t < n / P; ++t) {
    tile[threadIdx.x] = bodies[t * P + threadIdx.x];
    __syncthreads();
#pragma unroll 8
    for (int j = 0; j < P; ++j) acc = pull(acc, tile[j], at, soft2);
    __syncthreads();
  }
  for (int j = n / P * P; j < n; ++j) acc = pull(acc, bodies[j], at, soft2);
  out[i] = acc;
}

__global__ void step(Body* bodies, float3* velocity, const float3* force, float dt, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
    float3& v = velocity[i];
    v.x += force[i].x * dt, v.y += force[i].y * dt, v.z += force[i].z * dt;
    bodies[i].at = bodies[i].at + make_float3(v.x * dt, v.y * dt, v.z * dt);
  }
}
