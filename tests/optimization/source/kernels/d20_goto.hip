#include <hip/hip_runtime.h>
#include <cassert>

__global__ void jumps(const int* __restrict__ x, int* __restrict__ y, int n) {
  int i = 0;
again:
  y[i] = x[i];
  if (++i < 4) goto again;
  for (int k = 0; k < n; ++k) {
    if (x[k] < 0) goto next;
    y[k] = x[k];
  next:;
  }
  for (int k = 0; k < n; ++k) {
    int left = x[k];
    while (left-- > 0) y[k] ^= left;
  }
  for (int k = 0; k < n; ++k) {
    switch (x[k] & 3) {
      case 0: continue;
      case 1: y[k] += 1; [[fallthrough]];
      case 2: y[k] += 2; break;
      default: y[k] = 0;
    }
  }
  for (int k = 0; k < n; ++k) {
    assert(x[k] != 0);
    y[k] = 100 / x[k];
  }
  for (int k = 0; k < n; ++k) {
    if (x[k] == 12345) __builtin_trap();
    y[k] += 1;
  }
  for (int k = 0; k < 8; k++) {
    y[k] = k;
    if (x[k] > 7) k += 2;
  }
  for (int k = 0; k < 8; ++k) {
    for (int j = 0; j < 8; ++j) {
      if (x[j] == k) goto out;
    }
  }
out:
  y[0] = i;
}
