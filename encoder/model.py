"""The encoder and its masked-language-model head: one implementation of every shape.

Training takes packed documents, without padding or mask. The head, and what follows the attention in the last layer,
are computed for masked tokens only, as the loss depends on no other there. Inference takes padded batches. Memory
besides the activations: one chunk of logits (`encoder.loss`).

Shapes: S packed tokens, B rows of T tokens, M masked tokens, H hidden width, V vocabulary; `…` is S or B, T.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from configs import InputError
from encoder.attention import Sequences
from encoder.config import EncoderConfig
from encoder.documents import Documents
from encoder.layers import Layer, initialise, layer_norm
from encoder.loss import MaskedLoss, chunked_cross_entropy
from encoder.positions import rotary_angles, sinusoidal_table


class Embeddings(nn.Module):
    """The sum of word, position and segment embeddings, then a norm and dropout."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.word = nn.Embedding(config.known_vocab_size, hidden)
        self.segment = nn.Embedding(config.num_segments, hidden) if config.num_segments else None
        self.position = nn.Embedding(config.known_max_length, hidden) if config.position == "learned" else None
        table = sinusoidal_table(config.known_max_length, hidden) if config.position == "sinusoidal" else None
        self.sinusoids: Tensor | None
        self.register_buffer("sinusoids", table, persistent=False)
        self.scale = math.sqrt(hidden) if config.embedding_scale else 1.0
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
            x = (x + self.sinusoids[positions]).to(x.dtype)  # the table stays float32 where weights are bfloat16
        return self.dropout(self.norm(x))


class Encoder(nn.Module):
    """Token ids to hidden states."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_layers))
        self.final_norm = layer_norm(config) if config.norm == "pre" else nn.Identity()

    def forward(self, input_ids: Tensor, documents: Documents, output_index: Tensor | None = None) -> Tensor:
        """Hidden states of packed documents: input_ids (S,) to (S, H), or to (M, H) of the tokens `output_index` (M,).

        InputError when a document is longer than the model's max_length and, for ids on the CPU, when a token id is
        outside the word embedding.
        """
        check_bounds(self.config, input_ids, documents.max_length)
        index = documents.inverse_order if output_index is None else documents.inverse_order[output_index]
        return self._run(input_ids[documents.order], documents.positions, documents, output_index=index)

    def hidden(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> Tensor:
        """Hidden states of a padded batch: input_ids (B, T), attention_mask (B, T) True or 1 = real, to (B, T, H).

        Those of padding are zeros. InputError as in `forward`.
        """
        check_bounds(self.config, input_ids, input_ids.shape[1])
        keep = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self._run(input_ids, positions, keep, segment_ids=segment_ids)
        return hidden.masked_fill(~keep[..., None], 0.0)

    def set_rope_bases(self, config: EncoderConfig) -> None:
        """Rotate queries and keys by `rope_base` and `local_rope_base` of `config` from now on; nothing else changes.

        For a phase of training that extends the context. A compiled model is compiled anew at its next call.
        """
        bases = {"rope_base": config.rope_base, "local_rope_base": config.local_rope_base}
        self.config = self.config.model_copy(update=bases)

    def _run(
        self,
        input_ids: Tensor,
        positions: Tensor,
        sequences: Sequences,
        *,
        segment_ids: Tensor | None = None,
        output_index: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (…, H), or (M, H) of the packed tokens `output_index` (M,) in computed order."""
        config = self.config
        global_rotation = local_rotation = None
        if config.position == "rope":
            global_rotation = rotary_angles(positions, config.rope_base, config.head_size)
            if config.local_window:
                local_rotation = rotary_angles(positions, config.local_rope_base, config.head_size)
        every = config.gradient_checkpointing if self.training and torch.is_grad_enabled() else 0
        x = self.embeddings(input_ids, positions, segment_ids)
        for number, layer in enumerate(self.layers):
            rotation = local_rotation if config.is_local(number) else global_rotation
            is_last = number == len(self.layers) - 1
            inputs = x, sequences, rotation, output_index if is_last else None
            is_recomputed = every and number % every == 0
            x = checkpoint(layer, *inputs, use_reentrant=False) if is_recomputed else layer(*inputs)
        return self.final_norm(x)


class Head(nn.Module):
    """Hidden states to the vocabulary. Its output matrix is the word embedding: the same parameter, tied.

    The parameter is registered here too, so that ZeRO-3, which gathers the weights of each module before it runs, does
    so for this one.
    """

    def __init__(self, config: EncoderConfig, word_embedding: Tensor) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)
        # transformers' Bert takes the feed-forward activation here too; its other two architectures always have GELU
        self.activation = F.relu if config.norm == "post" and config.activation == "relu" else F.gelu
        self.norm = layer_norm(config)
        assert isinstance(word_embedding, nn.Parameter)
        self.weight = word_embedding
        self.bias = nn.Parameter(torch.zeros(config.known_vocab_size))

    def forward(self, hidden: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> MaskedLoss:
        """Summed loss of hidden (M, H) against targets (M,) int64."""
        return chunked_cross_entropy(self.transform(hidden), self.weight, self.bias, targets, label_smoothing)

    def transform(self, hidden: Tensor) -> Tensor:
        """The dense layer before the output matrix: (…, H) to (…, H)."""
        return self.norm(self.activation(self.dense(hidden)))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (…, H) to (…, V)."""
        return F.linear(self.transform(hidden), self.weight, self.bias)


class MaskedLanguageModel(nn.Module):
    """An encoder with its masked-language-model head; `forward` is the loss of a training step."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.head = Head(config, self.encoder.embeddings.word.weight)
        initialise(self, config)

    @property
    def config(self) -> EncoderConfig:
        """The shape, with the rotary bases that the encoder uses now."""
        return self.encoder.config

    def forward(
        self,
        input_ids: Tensor,
        documents: Documents,
        masked_index: Tensor,
        targets: Tensor,
        label_smoothing: float = 0.0,
    ) -> MaskedLoss:
        """Summed loss over masked tokens: input_ids (S,), masked_index (M,) into them, targets (M,), all int64.

        With M = 0 the loss is 0 and every parameter's gradient is zero, not None.
        """
        if not len(targets):
            return self._loss_of_no_token(input_ids, documents)
        hidden = self.encoder(input_ids, documents, masked_index)
        loss: MaskedLoss = self.head(hidden, targets, label_smoothing)
        return loss

    def _loss_of_no_token(self, input_ids: Tensor, documents: Documents) -> MaskedLoss:
        """The loss 0 of a batch without masked tokens, computed as the loss of its first token times 0.

        A constant 0 would do for one process. But under ZeRO-3 each layer gathers its weights from all ranks when it
        runs, forward and backward, so a rank that leaves a layer out lets the other ranks wait for ever. Running the
        layers on 0 tokens is no way out: torch treats empty tensors apart, and a rank that had them was seen to hang
        (with dropout in a recomputed last layer).
        """
        first = input_ids.new_zeros(1)
        loss = self.head(self.encoder(input_ids, documents, first), first)
        return MaskedLoss(loss.loss_sum * 0.0, loss.num_correct * 0)

    def logits(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> Tensor:
        """Logits of a padded batch: input_ids (B, T), attention_mask (B, T) True or 1 = real, to (B, T, V)."""
        return self.head.logits(self.encoder.hidden(input_ids, attention_mask, segment_ids))


def check_bounds(config: EncoderConfig, input_ids: Tensor, length: int) -> None:
    """InputError when a document of `length` tokens is too long or, for ids on the CPU, an id is too large.

    Ids on another device are not read, since the host would have to wait for it: check them before they are moved.
    """
    if config.max_length is not None and length > config.max_length:
        raise InputError(f"a document of {length} tokens is longer than the model's max_length of {config.max_length}")
    if input_ids.device.type == "cpu" and not torch.compiler.is_compiling() and input_ids.numel():
        smallest, largest = (int(bound) for bound in input_ids.aminmax())
        if smallest < 0 or largest >= config.known_vocab_size:
            wrong = smallest if smallest < 0 else largest
            raise InputError(f"token id {wrong} is outside the word embedding of vocab_size {config.vocab_size}")
