"""A worker that waits for one which dies: prints what it is told, as JSON."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cases import coordination_cases

from tfdist.strategies import MultiWorkerMirroredStrategy

if __name__ == "__main__":
    print(json.dumps(coordination_cases.killed(MultiWorkerMirroredStrategy())), flush=True)
    os._exit(0)  # TensorFlow's own shutdown would wait for the dead worker
