"""The LLVM backend, in the order a kernel takes: backend (the hooks) writes IR text into a frame;
compiler makes machine code of it, once per text; device owns memory and hands launches to the pool.
"""
