// A program that the injection library is loaded into, as the CUDA driver would: `program INJECTION STAND_IN MODE`.
// Each mode launches a known number of kernels of the stand-in and ends in its own way.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int (*flushes)();
static void (*launch)(const char*);
static void (*others)();
static void (*keep)(int);
static void (*take_over)(int);

template <class Function>
static void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function) _exit(99);
}

static void launch_many(int count) {
  for (int one = 0; one < count; ++one) launch("_Z4tinyPi");
}

// Until the library's thread has flushed all that was launched before.
static void wait_for_flush() {
  const timespec moment{0, 1000000};
  for (const int before = flushes(); flushes() < before + 2;) nanosleep(&moment, nullptr);
}

static void own_handler(int) {
  static const char words[] = "own handler\n";
  _exit(write(1, words, sizeof words - 1) > 0 ? 7 : 8);
}

int main(int count, char** words) {
  if (count != 4) return 2;
  const char* mode = words[3];
  const auto is = [mode](const char* name) { return strcmp(mode, name) == 0; };
  void* stand_in = dlopen(words[2], RTLD_NOW);
  if (!stand_in) return 98;
  find(stand_in, "stand_in_flushes", flushes);
  find(stand_in, "stand_in_launch", launch);
  find(stand_in, "stand_in_others", others);
  find(stand_in, "stand_in_keep", keep);
  find(stand_in, "stand_in_take_over", take_over);
  if (is("own handler")) signal(SIGTERM, own_handler);
  if (is("ignored")) signal(SIGTERM, SIG_IGN);
  if (is("taken before")) take_over(0);
  void* injection = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (!injection) return 97;
  int (*initialize)();
  int (*initialize_nvtx)(void*);
  find(injection, "InitializeInjection", initialize);
  find(injection, "InitializeInjectionNvtx2", initialize_nvtx);
  if (initialize() != 1 || initialize() != 1) return 96;
  if (is("ranges") && initialize_nvtx(&count) != 1) return 95;
  launch_many(1000);
  if (is("all")) others();
  if (is("leave")) {
    wait_for_flush();
    _exit(4);
  }
  if (is("killed")) {
    wait_for_flush();
    launch_many(100000);  // more than a buffer
    raise(SIGKILL);
  }
  if (is("becomes another")) {
    wait_for_flush();
    execl(words[0], words[0], words[1], words[2], "exit", static_cast<char*>(nullptr));
  }
  if (is("terminated") || is("own handler") || is("ignored")) raise(SIGTERM);
  if (is("forked")) {
    const pid_t child = fork();
    if (child == 0) exit(0);
    const pid_t other = fork();
    if (other == 0) {
      raise(SIGTERM);
      _exit(1);
    }
    int first = 0, second = 0;
    waitpid(child, &first, 0);
    waitpid(other, &second, 0);
    launch_many(1000);
    return WIFEXITED(first) && WIFSIGNALED(second) ? 0 : 94;
  }
  if (is("closed")) {
    wait_for_flush();
    for (int one = 3; one < 64; ++one) close(one);
    for (int one = 3; one < 64; ++one) open("own_file", O_RDWR | O_CREAT | O_APPEND, 0644);
    launch_many(1000);
  }
  if (is("flood")) {
    keep(1);
    launch_many(1000000);
    keep(0);
  }
  if (is("names")) {  // more than are remembered at once; the memory of each batch is used again for the next
    for (int batch = 0; batch < 3; ++batch) {
      constexpr int kTexts = 8000;
      char** texts = static_cast<char**>(calloc(kTexts, sizeof(char*)));
      for (int one = 0; one < kTexts; ++one) {
        texts[one] = static_cast<char*>(malloc(1000));
        snprintf(texts[one], 1000, "%0999d", batch * kTexts / 2 + one);
        launch(texts[one]);
      }
      wait_for_flush();
      for (int one = 0; one < kTexts; ++one) free(texts[one]);
      free(texts);
    }
  }
  if (is("small disk")) {
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 200000;
    setrlimit(RLIMIT_FSIZE, &limit);
    launch_many(20000);
    wait_for_flush();
    limit.rlim_cur = before;
    setrlimit(RLIMIT_FSIZE, &limit);
    launch_many(500);
  }
  if (is("second") && !dlopen("./libcupti.so.12", RTLD_NOW | RTLD_LOCAL)) return 93;
  if (is("taken later")) {
    take_over(1);
    launch_many(10);
  }
  // Of this program alone: what getrusage says holds what its parent had before this program was executed.
  char line[256];
  FILE *status = fopen("/proc/self/status", "r");
  while (status && fgets(line, sizeof line, status)) {
    long peak;
    if (sscanf(line, "VmHWM: %ld", &peak) == 1) printf("%ld\n", peak);
  }
  return 0;
}
