#error "half-precision types are not available on the cpu target: a CPU has no arithmetic of the same rounding"
