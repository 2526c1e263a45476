"""Makes a small Llama with real random weights and a tokenizer of its own: python model.py FOLDER [SEED].

Weights that only look random (load_format=dummy) give the same text whatever is in the KV cache; these do not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

VOCABULARY = 1024
LAYERS = 4


def main(folder: Path, seed: int = 0) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model: Any = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "norm" in name:
                weights.fill_(1.0)
            elif "o_proj" in name or "v_proj" in name:  # so that attention over the cache decides
                weights.normal_(0, 2.0 / weights.shape[1] ** 0.5)
            else:
                weights.normal_(0, 0.02 if "embed_tokens" in name else weights.shape[1] ** -0.5)
    model.to(torch.bfloat16).save_pretrained(folder)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
