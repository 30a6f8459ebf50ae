#include <hip/hip_runtime.h>
#define ROUNDS (4 + 2 * 3)
#define GROWS(i) ((i)++)
constexpr int kWidth = ROUNDS - 2;
enum { Levels = 3 };

__global__ void trips(float* x, int n) {
  const int half = kWidth / 2;
  int width = 8;
  for (int i = 0; i < ROUNDS; ++i) x[i] = 0;
  for (int i = 0; i < kWidth; i += 2) x[i] = 1;
  for (int i = half; i >= 0; --i) x[i] = 2;
  for (int i = 1; i <= 64; i *= 2) x[i] = 3;
  for (int i = 0; i < width; ++i) x[i] = 4;
  for (int i = 0; i < 8; ++i) { x[i] = 5; i += n; }
  for (int i = 0; i < 8; ++i) { x[GROWS(i)] = 6; }
  for (int i = 0; i != Levels; ++i) x[i] = 7;
  for (float f = 0; f < 4; f += 1) x[0] += f;
  for (unsigned char i = 0; i < 256; ++i) x[i] = 8;
  for (int i = 10; i < 4; ++i) x[i] = 9;
}
