#include <hip/hip_runtime.h>
#define SPIN(flag) while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE)) {}
#define LOAD(p) (*(volatile int*)(p))
#define ABS(x) ((x) < 0 ? -(x) : (x))
__global__ void flags(int* flag, float* x, int n) {
  for (int i = 0; i < n; ++i) { SPIN(flag + i) x[i] = 1.0f; }
  for (int i = 0; i < n; ++i) x[i] = LOAD(flag + i);
  for (int i = 0; i < n; ++i) x[i] = ABS(x[i]);
  for (int i = 0; i < n; ++i) x[i] = __builtin_amdgcn_ds_bpermute(i, flag[i]);
}
