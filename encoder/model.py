"""The encoder and its masked-language-model head: one implementation of every shape.

Training computes packed documents (no padding, no mask), and on masked tokens only what nothing else depends on: the
last layer from its attention on, and the head. Inference takes padded batches. Memory beside the activations: one chunk
of logits (`encoder.loss`).

Shapes: S packed tokens, B rows of T tokens, M masked tokens, H hidden width, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from configs import InputError
from encoder.attention import Padding, Rotation
from encoder.config import EncoderConfig
from encoder.documents import Documents
from encoder.initialisation import initialise
from encoder.layers import Layer, layer_norm
from encoder.loss import MaskedLoss, chunked_cross_entropy
from encoder.positions import rotary_angles, sinusoidal_table


class Embeddings(nn.Module):
    """Word, position and segment embeddings, summed, normed and dropped out."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.known_vocab_size, config.hidden_size)
        self.segment = nn.Embedding(config.num_segments, config.hidden_size) if config.num_segments else None
        self.position = (
            nn.Embedding(config.known_max_length, config.hidden_size) if config.position == "learned" else None
        )
        table = (
            sinusoidal_table(config.known_max_length, config.hidden_size) if config.position == "sinusoidal" else None
        )
        self.sinusoids: Tensor | None
        self.register_buffer("sinusoids", table, persistent=False)
        self.scale = math.sqrt(config.hidden_size) if config.embedding_scale else 1.0
        self.norm = layer_norm(config)
        self.dropout = nn.Dropout(config.embedding_dropout)

    def forward(self, input_ids: Tensor, positions: Tensor, segment_ids: Tensor | None) -> Tensor:
        """input_ids (…), positions (…) or (T,), segment_ids (…) or None for zeros, to (…, H)."""
        x = self.word(input_ids) * self.scale if self.scale != 1.0 else self.word(input_ids)
        if self.segment is not None:
            x = x + self.segment(torch.zeros_like(input_ids) if segment_ids is None else segment_ids)
        if self.position is not None:
            x = x + self.position(positions)
        elif self.sinusoids is not None:
            x = x + self.sinusoids[positions]
        return self.dropout(self.norm(x))


class Encoder(nn.Module):
    """Token ids to hidden states."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_layers))
        self.final_norm = layer_norm(config) if config.norm == "pre" else nn.Identity()

    def forward(self, input_ids: Tensor, documents: Documents, selected: Tensor | None = None) -> Tensor:
        """Hidden states of packed documents: input_ids (S,) to (S, H), or (M, H) of the tokens `selected` (M,).

        InputError when a document is longer than the model's positions, or, for ids on the CPU, when one is past the
        word embedding.
        """
        check_bounds(self.config, input_ids, documents.max_length)
        places = documents.inverse if selected is None else documents.inverse[selected]
        return self._run(input_ids[documents.order], documents.positions, documents, places=places)

    def hidden(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> Tensor:
        """Hidden states of a padded batch: input_ids (B, T), attention_mask (B, T) True or 1 = keep, to (B, T, H).

        Padded tokens come out as zeros. InputError as in `forward`.
        """
        check_bounds(self.config, input_ids, input_ids.shape[1])
        keep = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self._run(input_ids, positions, Padding(keep), segment_ids=segment_ids)
        return hidden.masked_fill(~keep[..., None], 0.0)

    def _run(
        self,
        input_ids: Tensor,
        positions: Tensor,
        layout: Documents | Padding,
        *,
        segment_ids: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (…, H), or (M, H) of the packed tokens at `places` (M,)."""
        every = self.config.gradient_checkpointing
        rotations = self._rotations(positions)
        x = self.embeddings(input_ids, positions, segment_ids)
        for number, layer in enumerate(self.layers):
            is_last = number == len(self.layers) - 1
            inputs = x, layout, rotations[self.config.is_local(number)], places if is_last else None
            if every and number % every == 0 and self.training and torch.is_grad_enabled():
                x = checkpoint(layer, *inputs, use_reentrant=False)
            else:
                x = layer(*inputs)
        return self.final_norm(x)

    def _rotations(self, positions: Tensor) -> tuple[Rotation | None, Rotation | None]:
        """The rotary angles of global and of local layers."""
        if self.config.position != "rope":
            return None, None
        size = self.config.head_size
        everywhere = Rotation(*rotary_angles(positions, self.config.rope_base, size))
        if self.config.local_window is None:
            return everywhere, None
        return everywhere, Rotation(*rotary_angles(positions, self.config.local_rope_base, size))


class Head(nn.Module):
    """Hidden states to the vocabulary; its output matrix is the word embedding, the same parameter.

    The parameter is registered here too, so that engines which shard parameters gather it for this module as well.
    """

    def __init__(self, config: EncoderConfig, word_embedding: Tensor) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)
        # transformers' Bert takes its feed-forward activation here too; the other two have GELU
        self.activation = F.relu if config.norm == "post" and config.activation == "relu" else F.gelu
        self.norm = layer_norm(config)
        assert isinstance(word_embedding, nn.Parameter)
        self.weight = word_embedding
        self.bias = nn.Parameter(torch.zeros(config.known_vocab_size))

    def forward(self, hidden: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> MaskedLoss:
        """Summed loss of hidden (M, H) against targets (M,) int64."""
        return chunked_cross_entropy(self.transform(hidden), self.weight, self.bias, targets, label_smoothing)

    def transform(self, hidden: Tensor) -> Tensor:
        """The head's inner layer: (…, H) to (…, H)."""
        return self.norm(self.activation(self.dense(hidden)))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (…, H) to (…, V)."""
        return F.linear(self.transform(hidden), self.weight, self.bias)


class MaskedLanguageModel(nn.Module):
    """An encoder with its masked-language-model head; `forward` is the training step's loss."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.head = Head(config, self.encoder.embeddings.word.weight)
        initialise(self, config)

    def forward(
        self,
        input_ids: Tensor,
        documents: Documents,
        masked_positions: Tensor,
        targets: Tensor,
        label_smoothing: float = 0.0,
    ) -> MaskedLoss:
        """Summed loss over masked tokens: input_ids (S,), masked_positions (M,) into S, targets (M,), all int64.

        With M = 0 the loss is 0 and every parameter's gradient is zero, not None.
        """
        if not len(targets):
            return self._nothing_masked(input_ids, documents)
        hidden = self.encoder(input_ids, documents, masked_positions)
        loss: MaskedLoss = self.head(hidden, targets, label_smoothing)
        return loss

    def _nothing_masked(self, input_ids: Tensor, documents: Documents) -> MaskedLoss:
        """Loss 0 by way of one token that counts nothing.

        torch treats tensors without rows apart, and a ZeRO-3 rank that has them waits for the others for ever (seen
        with dropout in a recomputed last layer).
        """
        first = input_ids.new_zeros(1)
        loss = self.head(self.encoder(input_ids, documents, first), first)
        return MaskedLoss(loss.loss_sum * 0.0, loss.num_correct * 0)

    def logits(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> Tensor:
        """Logits of a padded batch: input_ids (B, T), attention_mask (B, T) True = keep, to (B, T, V)."""
        return self.head.logits(self.encoder.hidden(input_ids, attention_mask, segment_ids))


def check_bounds(config: EncoderConfig, input_ids: Tensor, length: int) -> None:
    """InputError when `length` tokens are too many, or, for ids on the CPU, when one is past the word embedding.

    Ids on a device are not read, which would wait for it: call this before moving them.
    """
    if config.max_length is not None and length > config.max_length:
        raise InputError(f"a document of {length} tokens is longer than the model's max_length of {config.max_length}")
    if input_ids.device.type == "cpu" and not torch.compiler.is_compiling() and input_ids.numel():
        smallest, largest = (int(bound) for bound in input_ids.aminmax())
        if smallest < 0 or largest >= config.known_vocab_size:
            wrong = smallest if smallest < 0 else largest
            raise InputError(f"token id {wrong} is outside the word embedding of vocab_size {config.vocab_size}")
