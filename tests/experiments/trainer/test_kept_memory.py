"""Memory kept between training steps."""

import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource
from experiments.trainer.kept_memory import keep_freed_memory

library, size = ctypes.CDLL(None), 64 * 2**20
library.malloc.restype = ctypes.c_void_p

def faults_of_a_step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory = library.malloc(size)
    ctypes.memset(memory, 1, size)
    library.free(ctypes.c_void_p(memory))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults_of_a_step()
before = faults_of_a_step()
keep_freed_memory()
faults_of_a_step()
print(before, faults_of_a_step())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="keeps memory with glibc only")
def test_steps_reuse_the_pages_of_steps_before() -> None:
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    before, kept = map(int, run.stdout.split())
    assert before > 1000  # the control: large memory goes back to the system
    assert kept < before / 100
