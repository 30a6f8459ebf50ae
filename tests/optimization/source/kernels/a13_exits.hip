#include <hip/hip_runtime.h>

__global__ void leaves(const int* x, int* y, int n) {
  for (int i = 0; i < n; ++i) { if (x[i] == 7) break; y[i] = 1; }
  for (int i = 0; i < n; ++i) { if (x[i] == 7) continue; y[i] = 2; }
  for (int i = 0; i < n; ++i) {
    switch (x[i]) {
      case 0: y[i] = 3; break;
      default: y[i] = 4; break;
    }
  }
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < 4; ++j) { if (x[j] == i) break; y[j] = i; }
  }
  for (int i = 0; i < n; ++i) { if (x[i] < 0) goto done; y[i] = 5; }
done:
  while (true) { if (y[0]) break; y[0] = 1; }
}
