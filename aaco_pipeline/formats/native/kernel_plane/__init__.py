"""The kernel's own events of measured threads, as `aaco_pipeline.resources.kernel_plane` recorded them from tracefs.

A capture holds `kernel_plane.json` and, for each CPU and instance, the pages of the kernel's ring buffer as they came.
Their form is the kernel's: `Documentation/trace/ring-buffer-design.rst`, `include/linux/ring_buffer.h` and
`kernel/trace/ring_buffer.c`; how an event lies in them is told by its own `format` text, kept in the document.
"""
