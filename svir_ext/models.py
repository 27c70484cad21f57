"""Which of a server's models chat.

    models = chat_models(client.list_models())

A guess from their names, since no server tells.
"""

from __future__ import annotations

import re
from typing import Iterable

import svir

__all__ = ["chat_models"]

# Words that a model's name has when it does not chat (wire-protocol 6); the last line is of
# OpenAI's own list, whose models of these names its chat endpoint refuses.
_WORDS = frozenset(
    """
    embed embedding embeddings rerank reranker reranking bge clip
    whisper tts asr speech audio image flux sdxl diffusion
    dall sora moderation realtime transcribe
    """.split()
)


def chat_models(models: Iterable[svir.Model]) -> list[svir.Model]:
    """The models whose names do not say that they do something else, in the same order.

    No field of a listing tells embedding, reranking, speech and image models from chat models, so
    this reads the last part of the id ("BAAI/bge-m3" is "bge-m3") as words, and leaves a model out
    for a whole word only: "bge", but not "eclipse" for its "clip". Names that give no hint stay
    in ("all-minilm", an embedding model), and a chat model with such a word is left out
    ("qwen2-audio"): let a user type any name.
    """
    return [model for model in models if not any(map(_is_telling, _words(model.id)))]


def _words(id: str) -> list[str]:
    # An id may be a path to the file; its folders say nothing of the model.
    return re.findall("[a-z]+", re.split(r"[/\\]", id.rstrip("/\\"))[-1].lower())


def _is_telling(word: str) -> bool:
    # Written together in "embeddinggemma" and "textembedding-gecko".
    return word in _WORDS or word.startswith("embedding") or word.endswith("embedding")
