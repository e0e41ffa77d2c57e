"""Backpropagation on one screen, then the same with Tensor: the first page of the story.

A number that remembers how it was made can tell how it changes with what it was made from. That is
all that autograd is. coregrad does it with whole tensors, and leaves the computing to a compiler.
"""

from coregrad import Tensor


class Value:
    """A number, the numbers it came from, and the local derivative towards each of them."""

    def __init__(self, data, sources=()):
        self.data = data
        self.grad = 0.0
        self.sources = sources  # pairs (Value, derivative of this value by that one)

    def __add__(self, other):
        other = other if isinstance(other, Value) else Value(other)
        return Value(self.data + other.data, ((self, 1.0), (other, 1.0)))

    def __mul__(self, other):
        other = other if isinstance(other, Value) else Value(other)
        return Value(self.data * other.data, ((self, other.data), (other, self.data)))

    def relu(self):
        return Value(max(self.data, 0.0), ((self, float(self.data > 0)),))

    def backward(self):
        order, seen = [], set()

        def visit(value):  # sources before users
            if value not in seen:
                seen.add(value)
                for source, _ in value.sources:
                    visit(source)
                order.append(value)

        visit(self)
        self.grad = 1.0
        for value in reversed(order):  # users before sources: a gradient is complete when used
            for source, derivative in value.sources:
                source.grad += derivative * value.grad  # the chain rule


def f(x):
    """Works on Values and on Tensors: neither knows which it is."""
    return (x * 2.0 + 1.0).relu()


def main():
    value = Value(3.0)
    y = f(value)
    y.backward()
    print(f"Value:  f(3) = {y.data}, df/dx = {value.grad}")
    assert (y.data, value.grad) == (7.0, 2.0)

    tensor = Tensor(3.0, requires_grad=True)
    z = f(tensor)
    z.backward()
    print(f"Tensor: f(3) = {z.item()}, df/dx = {tensor.grad.item()}")
    assert (z.item(), tensor.grad.item()) == (7.0, 2.0)


if __name__ == "__main__":
    main()
