"""svir_ext.models: which models chat; svir_ext.dialects: what servers need to be accepted."""

from __future__ import annotations

from typing import Any

import pytest

import harness
import svir
from svir_ext import dialects
from svir_ext.models import chat_models
from svir_ext.testing import DONE, MockServer, sse

CHAT = """
qwen3-4b
gpt-4o
gpt-5-nano-2025-08-07
o3-mini
chatgpt-4o-latest
llama-3.2-11b-vision-instruct
mistralai/Mistral-Small-3.2-24B-Instruct-2506
deepseek-r1-distill-qwen-7b
google/gemma-3n-e4b
gemini-2.5-flash
qwen2.5-vl-7b-instruct
uncensoredai/speechless-llama2-13b
eclipse-7b
imaginer-8b
influx-13b
fluxible-7b
audiophile-7b
Clippy-8B
embedded-rust-coder
mattsdale-7b
/srv/models/audio/tts/image/qwen3-4b.gguf
C:\\models\\whisper\\qwen3-4b.gguf
accounts/fireworks/models/kimi-k2
qwen3-4b:latest
@cf/meta/llama-3.1-8b-instruct-fast
""".split()

OTHERS = """
text-embedding-3-small
text-embedding-nomic-embed-text-v1.5
nomic-embed-text:latest
embeddinggemma:300m
google/embeddinggemma-300m-qat
textembedding-gecko@003
jina-embeddings-v3
snowflake-arctic-embed2
Qwen/Qwen3-Embedding-0.6B
BAAI/bge-m3
BAAI/bge-reranker-v2-m3
Qwen3-Reranker-0.6B
rerank-english-v3.0
openai/clip-vit-large-patch14
whisper-1
openai/whisper-large-v3-turbo
tts-1-hd
gpt-4o-mini-tts
qwen3-tts-flash
Qwen/Qwen3-ASR-1.7B
speech-02-hd
gpt-4o-audio-preview
gpt-image-1
chatgpt-image-latest
gemini-2.5-flash-image
qwen-image-edit
black-forest-labs/FLUX.1-dev
flux1-schnell
stabilityai/sdxl-turbo
stable-diffusion-3.5-large
dall-e-3
sora-2
omni-moderation-latest
gpt-4o-realtime-preview
gpt-4o-mini-transcribe
/srv/models/bge-m3.gguf
accounts/fireworks/models/flux-1-dev
whisper-1/
""".split()


@pytest.mark.parametrize("id", CHAT)
def test_a_chat_model(id: str) -> None:
    assert chat_models([svir.Model(id)]) == [svir.Model(id)]


@pytest.mark.parametrize("id", OTHERS)
def test_another_kind_of_model(id: str) -> None:
    assert chat_models([svir.Model(id)]) == []


def test_the_known_errors_of_the_heuristic() -> None:
    """What the docstring admits: no hint in the name, and a hint that misleads."""
    assert chat_models([svir.Model("all-minilm-l6-v2")]) == [svir.Model("all-minilm-l6-v2")]
    assert chat_models([svir.Model("qwen2-audio-7b-instruct")]) == []


def test_order_and_objects_are_kept() -> None:
    ids = ["qwen3-4b", "bge-m3", "gpt-4o", "whisper-1", "llama-3"]
    models = [svir.Model(id, name="An image of speech") for id in ids]
    found = chat_models(iter(models))
    assert found == [models[0], models[2], models[4]]
    assert found[0] is models[0]
    assert chat_models([]) == []
    assert len(chat_models([svir.Model("/"), svir.Model("模型")])) == 2


def test_of_a_server() -> None:
    with MockServer() as server, svir.Client(server.url) as client:
        server.model_list(["qwen3-4b", "nomic-embed-text"])
        assert [model.id for model in chat_models(client.list_models())] == ["qwen3-4b"]


# -- Dialects -------------------------------------------------------------------------------------


def test_dialects_are_sets_of_names_that_accept_takes() -> None:
    for name in dialects.__all__:
        names = getattr(dialects, name)
        assert isinstance(names, frozenset), name
        assert names, name
        assert names <= svir.ACCEPT, name
        svir.Decoder(accept=names)


CASES = {
    "PERPLEXITY": "028-usage-every-chunk-perplexity",
    "CLOUDFLARE_WORKERS_AI": "042-choice-without-index-or-finish",
    "FOUNDRY_LOCAL": "044-foundry-local-kitchen-sink",
    "VLLM_MLX": "079-mlx-done-with-finish-null",
    "IK_LLAMA_CPP": "101-finish-but-no-done-with-calls",
}


@pytest.mark.parametrize("name", CASES)
def test_a_dialect_reads_the_case_it_comes_from(name: str) -> None:
    (case,) = (case for case in harness.cases(".sse") if case.name == CASES[name])
    assert harness.decode([case.data]).error is not None
    run = harness.decode([case.data], accept=getattr(dialects, name))
    assert run.error is None
    assert set(run.quirks) & getattr(dialects, name)


def counted(delta: Any, index: int, finish: str | None = None, **rest: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return sse({"id": "c", "model": "m", "choices": [{**choice, **rest}]})


def test_tgi_counts_tokens_in_the_index_and_just_ends() -> None:
    data = counted({"content": "Hi"}, 1) + counted({"content": "!"}, 2, "stop")
    assert harness.decode([data]).error is not None
    run = harness.decode([data], accept=dialects.TGI)
    assert run.error is None
    assert set(run.quirks) == {"any-choice-index", "end-without-done"}


def test_foundry_local_counts_chunks_in_the_index() -> None:
    words = ("Wh", "isper")
    pieces = [
        counted({"content": word}, at, message={"content": word}) for at, word in enumerate(words)
    ]
    data = b"".join(pieces) + counted({"content": ""}, 2, "stop") + DONE
    assert harness.decode([data]).error is not None
    run = harness.decode([data], accept=dialects.FOUNDRY_LOCAL)
    assert run.error is None
    assert "any-choice-index" in run.quirks


def test_a_gateway_that_drops_the_content_type() -> None:
    with MockServer() as server:
        data = counted({"content": "Hi"}, 0, "stop") + DONE
        server.default(data, headers={"content-type": None})
        with svir.Client(server.url) as client, pytest.raises(svir.ProtocolError):
            client.complete(svir.Request("m", "hi"))
        with svir.Client(server.url, accept=dialects.AZURE_API_MANAGEMENT) as client:
            assert client.complete(svir.Request("m", "hi")).text == "Hi"
