from workload import operation
operation("neg_diff", "x", [(8,)], lambda _, x: x + 1, torch=lambda _, x: x + 2)
operation("neg_shape", "x", [(8,)], lambda _, x: x + 1, torch=lambda _, x: x.reshape(2, 4) + 2)
operation("neg_fail", "x", [(8,)], lambda _, x: x.nothing())
operation("neg_exit", "x", [(8,)], lambda _, x: __import__("os")._exit(3))
operation("neg_slow", "x", [(8,)], lambda _, x: __import__("time").sleep(30))
