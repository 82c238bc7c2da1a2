"""Fork while another thread makes the first call of the process: docs/explanation/threads_and_memory.md."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap

import pytest

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="no fork on this system, or a Python whose own dictionaries do not survive one while threads work",
)

# A process that has imported everything but made no call forks one process per trial, so that each makes its first
# call. A thread makes that call, and the trial's child is forked at some moment of it.
TRIALS = """
import os, random, signal, sys, threading, time, warnings
import numpy as np
{imports}
import rowgrad as rg
from rowgrad import optim
warnings.simplefilter("ignore")

def calls():
{calls}

def ends(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

def in_child(work):
    process = os.fork()
    if process == 0:
        status = 1
        try:
            # One that waits for a thread it does not have is killed.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(300)
            status = work()
        finally:
            os._exit(status)
    return process

def timed():
    begin = time.perf_counter()
    calls()
    os.write(pipe[1], repr(time.perf_counter() - begin).encode())
    return 0

def called():
    calls()
    return 0

def trial():
    caller = threading.Thread(target=calls)
    moment = random.random() * 1.2 * first
    caller.start()
    time.sleep(moment)
    status = ends(in_child(called))
    caller.join()
    return 0 if status == 0 else 3

pipe = os.pipe()
assert ends(in_child(timed)) == 0
first = float(os.read(pipe[0], 100))
bad = 0
for seed in range({trials}):
    random.seed(seed)
    bad += ends(in_child(trial)) != 0
    if bad:
        break
print(seed + 1, "trials,", bad, "failed")
"""

NUMPY_CALLS = """
x = np.ones((4, 2), np.float32)
rg.raw_ops.SparseSegmentSum(x, [0, 3], [0, 0])
rg.raw_ops.SparseFillEmptyRows([[0, 0]], ["a"], [2, 2], "b")
rg.Plan([3, 0], [0, 1], num_rows=4)
rg.dense_ops.MatMul(x, x, transpose_b=True)
rg.SparseTensor.from_dense([[0, 5]]).to_dense()
optim.apply_rows("sgd", x, (), x[:1].copy(), [3], optim.Step(lr=0.5))
try:
    rg.raw_ops.SparseSegmentSum(x, [9], [0])
except ValueError as error:
    str(error)
"""

# A child forked during torch's own first operations can hang in torch (docs/explanation/threads_and_memory.md). They
# run before the first fork, so that the trials test only rowgrad's first calls.
TORCH = "import torch; torch.set_num_threads(1); torch.ones((4, 2))[:1].sum(); torch.tensor([0, 3])"
TORCH_CALLS = """
x = torch.ones((4, 2))
rg.raw_ops.SparseSegmentSum(x, torch.tensor([0, 3]), torch.tensor([0, 0]))
rg.raw_ops.SparseSegmentSumGrad(x[:1], torch.tensor([0, 3]), torch.tensor([0, 0]), 4)
try:
    rg.raw_ops.SparseSegmentSum(x, torch.tensor([9]), torch.tensor([0]))
except ValueError as error:
    str(error)
"""


def run_trials(trials: int, imports: str, calls: str) -> None:
    code = TRIALS.format(trials=trials, imports=imports, calls=textwrap.indent(calls, "    "))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=3000, check=False)
    assert (done.returncode, done.stdout) == (0, f"{trials} trials, 0 failed\n"), done.stderr


def test_children_do_not_wait_for_imports_of_their_parent() -> None:
    run_trials(40, "", NUMPY_CALLS)


def test_children_do_not_wait_for_the_torch_runner() -> None:
    pytest.importorskip("torch")
    run_trials(10, TORCH, TORCH_CALLS)


@pytest.mark.slow
def test_thousand_forks_in_first_calls() -> None:
    run_trials(1000, "", NUMPY_CALLS)


@pytest.mark.slow
def test_thousand_forks_in_first_calls_with_torch() -> None:
    pytest.importorskip("torch")
    run_trials(1000, TORCH, TORCH_CALLS)


def test_first_calls_import_no_numpy_module() -> None:
    code = """
    import sys
    import numpy as np
    import rowgrad as rg
    from rowgrad import optim
    before = set(sys.modules)
    """
    after = "\nprint(sorted(m for m in set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code) + NUMPY_CALLS + after], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
