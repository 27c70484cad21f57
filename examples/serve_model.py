"""Serve one GGUF model at a free port of 127.0.0.1; local_server.py runs this as a process.

    python3 serve_model.py FOLDER_WITH_XLLAMACPP MODEL.gguf

Prints the URL once it is ready, and ends when its standard input does, so that it never outlives
the process that started it.
"""

import os
import signal
import sys
import threading

if len(sys.argv) != 3:
    sys.exit(__doc__)
packages, gguf = sys.argv[1:]
sys.path.insert(0, packages)


def end_with_the_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
threading.Thread(target=end_with_the_parent, daemon=True).start()

import xllamacpp  # type: ignore  # noqa: E402 - it is in that folder

params = xllamacpp.CommonParams()
params.model.path = gguf
params.model_alias = {os.path.basename(gguf).partition(".")[0]}
params.n_ctx = 2048
params.n_parallel = 1
params.n_predict = 400  # so small a model may never come to an end
params.sampling.temp = 0.0  # the likeliest answer: it wanders least
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
threading.Event().wait()
