"""Memory kept between training steps."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource
from experiments.trainer.kept_memory import freed_memory_kept

library, size = ctypes.CDLL(None), 64 * 2**20
library.malloc.restype = ctypes.c_void_p
PR_SET_THP_DISABLE = 41
library.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)

def faults_of_a_step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory = library.malloc(size)
    ctypes.memset(memory, 1, size)
    library.free(ctypes.c_void_p(memory))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults_of_a_step()
before = faults_of_a_step()
with freed_memory_kept():
    faults_of_a_step()
    within = faults_of_a_step()
print(before, within, faults_of_a_step())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="memory is kept with glibc only")
def test_steps_reuse_the_pages_of_steps_before() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=environment)
    before, within, after = map(int, run.stdout.split())
    assert before > 1000 and after > 1000  # the controls: large memory goes back to the system
    assert within < before / 100
