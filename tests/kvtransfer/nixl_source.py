"""The source side of the NIXL tests, run as its own process and told what to do on stdin.

It prints one line of JSON for its metadata, then one line for each command it has obeyed.
"""

import base64
import json
import select
import sys
import time

import numpy as np

from segue.kvtransfer.nixl_transport import NixlTransport


def main(agent_name: str, num_bytes: int, seed: int) -> None:
    region = np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)
    transport = NixlTransport(agent_name)
    metadata = transport.register(region.ctypes.data, region.nbytes, "cpu")
    print(json.dumps({"metadata": base64.b64encode(metadata).decode()}), flush=True)
    progressing = True
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], 0.001 if progressing else None)
        if readable:
            command = sys.stdin.readline().strip()
            if command in ("", "quit"):
                break
            answer = 0.0
            if command == "measure":
                began = time.process_time()
                time.sleep(1.0)
                answer = time.process_time() - began
            progressing = command == "progress"
            print(json.dumps({command: answer}), flush=True)
        if progressing:
            transport.progress()
    transport.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
