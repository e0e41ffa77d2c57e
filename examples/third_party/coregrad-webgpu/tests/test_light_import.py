"""Asking what the plugin is must cost nothing: no driver is imported before the device is used."""

import subprocess
import sys

CODE = """
import sys
import coregrad.hookspecs
before = set(sys.modules)
import coregrad_webgpu
assert coregrad_webgpu.backend_info().name == "webgpu"
print(*sorted(set(sys.modules) - before))
"""


def test_the_light_module_imports_itself_alone():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["coregrad_webgpu"]
