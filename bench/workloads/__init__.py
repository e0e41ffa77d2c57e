"""The benchmarks, a file per family; every file is imported, none is listed anywhere."""
