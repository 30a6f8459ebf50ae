"""Run a program under rocprofv3, pass by pass."""
