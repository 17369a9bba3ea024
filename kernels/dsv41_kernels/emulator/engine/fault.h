// Errors a kernel causes. The text may hold {0xPC} marks, which Python turns into disassembly.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <string>

struct Fault {
  std::string kind, text;
};

[[noreturn]] __attribute__((format(printf, 2, 3))) inline void fail(const char *kind,
                                                                    const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  throw Fault{kind, text};
}
