"""ResNet-50: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016."""

from __future__ import annotations

from typing import Any

from libraries import Library

from models.spelling import batch_norm, max_pool

GROUPS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride
PRODUCTS = 4.09e9  # per image of 224 x 224


def resnet50(library: Library) -> Any:
    """(N, 3, 224, 224) to a thousand logits."""
    nn = library.module.nn

    class Block(library.Module):  # type: ignore[name-defined, misc]
        def __init__(self, channels: int, width: int, stride: int, first: bool) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
            self.bn1 = batch_norm(library, width)
            self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
            self.bn2 = batch_norm(library, width)
            self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
            self.bn3 = batch_norm(library, 4 * width)
            self.first = first
            if first:
                self.conv0 = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
                self.bn0 = batch_norm(library, 4 * width)

        def forward(self, x: Any) -> Any:
            y = self.bn1(self.conv1(x)).relu()
            y = self.bn2(self.conv2(y)).relu()
            y = self.bn3(self.conv3(y))
            return (y + (self.bn0(self.conv0(x)) if self.first else x)).relu()

    class ResNet(library.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
            self.bn1 = batch_norm(library, 64)
            blocks, channels = [], 64
            for width, count, stride in GROUPS:
                for i in range(count):
                    blocks.append(Block(channels, width, stride if i == 0 else 1, i == 0))
                    channels = 4 * width
            self.blocks = library.parts(blocks)
            self.fc = nn.Linear(2048, 1000)

        def forward(self, x: Any) -> Any:
            x = max_pool(library, self.bn1(self.conv1(x)).relu(), 3, 2, 1)
            for block in self.blocks:
                x = block(x)
            return self.fc(x.mean((2, 3)))

    return ResNet()
