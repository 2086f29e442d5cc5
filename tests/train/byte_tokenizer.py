"""A tokenizer without a vocabulary to learn: an id for each byte, and one for each layout token."""

from __future__ import annotations

from collections.abc import Sequence

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN = (*CHATML, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
LLAMA3 = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
)


class ByteTokenizer:
    """Ids 0 to 255 are bytes, those from 256 the layout tokens in their order."""

    def __init__(self, names: Sequence[str] = CHATML) -> None:
        self.names = tuple(names)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token(self, name: str) -> int | None:
        return 256 + self.names.index(name) if name in self.names else None

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(bytes([each]) if each < 256 else self.names[each - 256].encode() for each in ids).decode(
            errors="replace"
        )
