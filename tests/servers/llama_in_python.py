"""llama.cpp's server as a Python extension, with the few options of llama-server that tests use.

    python3 llama_in_python.py FOLDER_WITH_XLLAMACPP -m MODEL.gguf --host 127.0.0.1 --port 0 ...

For processors that the ready-made llama-server has too new instructions for: this one is built for
any x86-64 of the last ten years. CPython 3.10 or newer.
"""

from __future__ import annotations

import argparse
import sys
import time


def main(folder: str, *args: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--alias", default="tiny")
    parser.add_argument("-c", dest="n_ctx", type=int, default=1024)
    parser.add_argument("-np", dest="n_parallel", type=int, default=1)
    parser.add_argument("-t", dest="threads", type=int, default=1)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--api-key")
    parser.add_argument("--reasoning-format", default="auto")
    parser.add_argument("--context-shift", action="store_true")
    for name in ("--no-ui", "--offline"):
        parser.add_argument(name, action="store_true")
    serve(folder, parser.parse_args(args))


def serve(folder: str, options: argparse.Namespace) -> None:
    sys.path.insert(0, folder)
    import xllamacpp as llama  # type: ignore

    params = llama.CommonParams()
    params.model.path, params.model_alias = options.model, {options.alias}
    params.hostnames, params.port = [options.host], options.port
    params.n_ctx, params.n_parallel = options.n_ctx, options.n_parallel
    params.cpuparams.n_threads = options.threads
    params.sampling.temp = options.temp
    params.ctx_shift = options.context_shift
    params.ui = False
    if options.api_key:
        params.api_keys = [options.api_key]
    formats = llama.common_reasoning_format
    params.reasoning_format = getattr(
        formats, f"COMMON_REASONING_FORMAT_{options.reasoning_format.upper()}"
    )
    server = llama.Server(params)  # it logs what it listens on
    while server is not None:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
