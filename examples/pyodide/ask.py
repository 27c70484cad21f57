"""What run.mjs and index.html run in Pyodide. They set `url`, `model` and `question`."""

from fetch_backend import FetchBackend, events
from js import AbortController
from pyodide.ffi import can_run_sync

import svir

# ruff: noqa: F821
# pyright: reportUndefinedVariable=false, reportMissingImports=false
request = svir.Request(model, question)
try:
    if can_run_sync():
        stream = svir.Client(url, backend=FetchBackend()).stream(request)
        stop = stream.close  # for the page's Stop button
        for text in stream.text():
            print(text, end="", flush=True)
        print(f"\n({stream.completion.finish_reason})")
    else:
        stopper = AbortController.new()
        stop = stopper.abort
        async for event in events(url, request, stop=stopper):  # type: ignore  # Pyodide runs this as a coroutine
            if event.type == "text":
                print(event.text, end="", flush=True)
            elif event.type == "completed":
                print(f"\n({event.completion.finish_reason})")
except svir.Error as error:
    print(f"\n({error.kind}: {error})")
