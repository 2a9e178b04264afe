"""A tokenizer for llguidance whose tokens are single bytes."""


class Bytes:
    eos_token_id, bos_token_id = 256, None

    def __init__(self):
        self.special_token_ids = [256]
        self.tokens = [*(bytes([i]) for i in range(256)), b"<eos>"]

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)
