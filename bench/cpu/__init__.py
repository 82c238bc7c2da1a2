"""Operators on the CPU: compared with other libraries, and alone as sizes and threads grow."""
