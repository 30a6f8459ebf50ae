"""The profilers that a recording can put beside a program on a GPU, each a module that says whether it is there."""
