#include <hip/hip_runtime.h>
__global__ void early(const int* x, int* y, int n) {
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      if (x[j] == i) return;
    }
    y[i] = 1;
  }
  for (int i = 0; i < n; ++i) {
    auto check = [&](int j) { if (x[j] == i) return 1; return 0; };
    y[i] = check(i);
  }
  for (int i = 0; i < n; ++i) {
    switch (x[i]) { case 1: continue; case 2: return; }
  }
}
