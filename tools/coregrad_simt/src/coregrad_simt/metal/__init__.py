"""Metal on the CPU: the text as C++ (source), its address spaces looked at by clang (spaces)."""
