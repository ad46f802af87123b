# SPDX-License-Identifier: Apache-2.0
"""Whole models as people use them, with random weights: Hugging Face's transformers from configurations made here, so
that nothing is downloaded, and a recommender and an MLP-Mixer. Each takes tensors by name and gives one tensor.

Tests run them narrow and shallow, bench/models.py at their usual sizes."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn


class Missing(Exception):
    """Why a model is not here: its package is not installed, or does not work with this PyTorch."""


def transformers(name: str) -> Any:
    """A class of Hugging Face's."""
    try:
        package = importlib.import_module("transformers")
        if package.is_torch_available():  # not an older one than it wants
            return getattr(package, name)
    except (ImportError, AttributeError) as why:
        raise Missing(f"transformers: {why}") from None
    raise Missing(f"transformers {package.__version__} wants a newer PyTorch than {torch.__version__}")


@dataclass(frozen=True)
class Size:
    """How large a model is: layers, features, heads, the length of an input (words, or pixels along a side), words it
    knows, and rows of a batch."""

    layers: int
    width: int
    heads: int
    length: int
    words: int = 0
    batch: int = 8


class Whole(nn.Module):
    """One of transformers' models, of which `take` picks the tensor that is wanted."""

    def __init__(self, model: nn.Module, take: str):
        super().__init__()
        self.model, self.take = model, take

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(**inputs), self.take)


def tokens(size: Size) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, size.words, (size.batch, size.length))}


def _language(kind: str, ending: str, take: str, words: dict[str, str], **more: Any) -> Callable[[Size], nn.Module]:
    """A model of words: the names that its configuration has for what a size says, and what else it says."""

    def build(size: Size) -> nn.Module:
        given = {name: getattr(size, of) for name, of in words.items()}
        given.update({name: value(size) if callable(value) else value for name, value in more.items()})
        return Whole(transformers(kind + ending)(transformers(f"{kind}Config")(**given)), take)

    return build


_BERT = {"num_hidden_layers": "layers", "hidden_size": "width", "num_attention_heads": "heads", "vocab_size": "words"}
_PLAIN = {"max_position_embeddings": "length"}
_GPT2 = {"n_layer": "layers", "n_embd": "width", "n_head": "heads", "vocab_size": "words", "n_positions": "length"}
_T5 = {"num_layers": "layers", "d_model": "width", "num_heads": "heads", "vocab_size": "words"}
_FOUR = {"intermediate_size": lambda size: 4 * size.width}
_GATED = {"intermediate_size": lambda size: 11 * size.width // 4, "use_cache": False}
_GROUPED = {**_GATED, "num_key_value_heads": lambda size: size.heads // 2}
_HEAD = {"head_dim": lambda size: size.width // size.heads}


def vit(size: Size) -> nn.Module:
    config = transformers("ViTConfig")(num_hidden_layers=size.layers, hidden_size=size.width, image_size=size.length,
                                       num_attention_heads=size.heads, intermediate_size=4 * size.width)
    return Whole(transformers("ViTModel")(config, add_pooling_layer=False), "last_hidden_state")


def images(size: Size) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(size.batch, 3, size.length, size.length)}


def whisper(size: Size) -> nn.Module:
    config = transformers("WhisperConfig")(
        encoder_layers=size.layers, d_model=size.width, encoder_attention_heads=size.heads,
        encoder_ffn_dim=4 * size.width, max_source_positions=size.length, vocab_size=size.words,
        decoder_layers=1, decoder_attention_heads=size.heads, decoder_ffn_dim=size.width,
        pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0)
    return Whole(transformers("WhisperModel")(config).encoder, "last_hidden_state")


def spectra(size: Size) -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(size.batch, 80, 2 * size.length)}


class Dlrm(nn.Module):
    """A recommender: numbers through an MLP, categories through embeddings, products of all pairs of them, an MLP."""

    def __init__(self, size: Size, numbers: int = 13):
        super().__init__()
        self.below = nn.Sequential(*self._mlp([numbers, 4 * size.width, 2 * size.width, size.width]))
        self.tables = nn.ModuleList(nn.EmbeddingBag(size.words, size.width, mode="sum") for _ in range(size.heads))
        vectors = size.heads + 1
        pairs = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("pairs", pairs[0] * vectors + pairs[1])
        inner = [8 * size.width] * size.layers
        self.above = nn.Sequential(*self._mlp([size.width + len(self.pairs), *inner]), nn.Linear(inner[-1], 1))

    @staticmethod
    def _mlp(widths: list[int]) -> list[nn.Module]:
        return [made for k, n in zip(widths, widths[1:]) for made in (nn.Linear(k, n), nn.ReLU())]

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        x = self.below(numbers)
        looked_up = [table(at) for table, at in zip(self.tables, categories.unbind(0))]
        vectors = torch.stack([x, *looked_up], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
        return torch.sigmoid(self.above(torch.cat([x, products], 1)))


def clicks(size: Size) -> dict[str, torch.Tensor]:
    drawn = torch.randint(0, size.words, (size.heads, size.batch, size.length))
    return {"numbers": torch.rand(size.batch, 13), "categories": drawn}


class MixerBlock(nn.Module):
    def __init__(self, places: int, width: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.places = nn.Sequential(nn.Linear(places, width // 2), nn.GELU(), nn.Linear(width // 2, places))
        self.features = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.places(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.features(self.norms[1](x))


class Mixer(nn.Module):
    """MLP-Mixer on patches of 16 x 16 pixels."""

    def __init__(self, size: Size):
        super().__init__()
        self.stem = nn.Conv2d(3, size.width, 16, 16)
        self.blocks = nn.Sequential(*(MixerBlock((size.length // 16) ** 2, size.width) for _ in range(size.layers)))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, 1000)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.stem(pixel_values).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


@dataclass(frozen=True)
class Model:
    """One model: how it is made and what it is given, at its usual size and at one for a processor of two cores."""

    name: str
    build: Callable[[Size], nn.Module]
    inputs: Callable[[Size], dict[str, torch.Tensor]]
    usual: Size
    small: Size
    tiny: Size

    def made(self, size: Size, seed: int = 1) -> nn.Module:
        """In eval mode; the same seed gives the same weights."""
        torch.manual_seed(seed)
        return self.build(size).eval()

    def given(self, size: Size, seed: int = 2) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return self.inputs(size)


def _model(name: str, build: Callable[[Size], nn.Module], inputs: Callable[[Size], dict[str, torch.Tensor]],
           usual: Size, **tiny: int) -> Model:
    shorter = {"length": 128, "words": min(usual.words, 8192)} if inputs is tokens else {}
    small = replace(usual, layers=min(usual.layers, 4), batch=2, **shorter)
    narrow = Size(layers=2, width=32, heads=4, length=10, words=min(usual.words, 60), batch=3)
    return Model(name, build, inputs, usual, small, replace(narrow, **tiny))


_LLAMA = Size(layers=8, width=1024, heads=16, length=512, words=32000)
MODELS = [
    _model("bert", _language("Bert", "Model", "last_hidden_state", {**_BERT, **_PLAIN}, **_FOUR), tokens,
           Size(12, 768, 12, 512, 30522)),
    _model("gpt2", _language("GPT2", "LMHeadModel", "logits", _GPT2, use_cache=False, bos_token_id=0, eos_token_id=0),
           tokens, Size(12, 768, 12, 512, 50257)),
    _model("llama", _language("Llama", "ForCausalLM", "logits", _BERT, **_GATED), tokens, _LLAMA),
    _model("mistral", _language("Mistral", "ForCausalLM", "logits", _BERT, **_GROUPED, **_HEAD), tokens, _LLAMA),
    _model("qwen2", _language("Qwen2", "ForCausalLM", "logits", _BERT, **_GROUPED), tokens, _LLAMA),
    _model("gemma2", _language("Gemma2", "ForCausalLM", "logits", _BERT, **_GROUPED, **_HEAD), tokens, _LLAMA),
    _model("t5_encoder", _language("T5", "EncoderModel", "last_hidden_state", _T5, d_ff=lambda size: 4 * size.width,
                                   d_kv=lambda size: size.width // size.heads), tokens, Size(6, 512, 8, 512, 32128)),
    _model("vit", vit, images, Size(12, 768, 12, 224, batch=16), length=32),
    _model("clip_text", _language("CLIPText", "Model", "last_hidden_state", {**_BERT, **_PLAIN}, **_FOUR,
                                  bos_token_id=0, eos_token_id=1, pad_token_id=1), tokens,
           Size(12, 512, 8, 77, 49408)),
    _model("whisper_encoder", whisper, spectra, Size(6, 512, 8, 1500, 51865), length=12),
    _model("dlrm", Dlrm, clicks, Size(layers=3, width=128, heads=26, length=4, words=100000, batch=2048),
           width=16, heads=5, length=3),
    _model("mlp_mixer", Mixer, images, Size(12, 768, 0, 224, batch=16), length=64),
]
BY_NAME = {model.name: model for model in MODELS}
