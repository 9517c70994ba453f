"""What clients may ask of the simulated engine: OpenAI's requests as vLLM's server reads them.

Unknown fields are ignored and null means the default, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, NonNegativeInt, model_validator

from cluster.engines.simulated.text import tokenize

Prompt = Annotated[
    str | list[NonNegativeInt] | list[str] | list[list[NonNegativeInt]], Field(min_length=1)
]
Stop = Annotated[list[str], BeforeValidator(lambda v: [v] if isinstance(v, str) else v)]


class Request(BaseModel):
    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data


class Message(BaseModel):
    role: str
    content: str | list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(str(part.get("text", "")) for part in self.content)
        return self.content or ""


class StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(Request):
    """What every request for tokens may say."""

    n: int = Field(1, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=1)
    stop: Stop = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False
    logprobs: int = 0

    def prompts(self) -> list[list[int]]:
        """The token ids of each prompt."""
        raise NotImplementedError

    def length(self) -> int | None:
        """The most tokens to answer with; None: the engine's default."""
        return self.max_tokens


class ChatRequest(GenerationRequest):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    continue_final_message: bool = False

    def prompts(self) -> list[list[int]]:
        return [tokenize(chat_prompt(self.messages, self.continue_final_message))]

    def length(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(GenerationRequest):
    prompt: Prompt
    max_tokens: int | None = Field(16, ge=1)

    def prompts(self) -> list[list[int]]:
        return token_lists(self.prompt)


class ResponsesRequest(GenerationRequest):
    input: str | list[Message]
    instructions: str = ""
    max_output_tokens: int | None = Field(None, ge=1)

    def prompts(self) -> list[list[int]]:
        asked = self.input
        messages = [Message(role="user", content=asked)] if isinstance(asked, str) else asked
        if self.instructions:
            messages = [Message(role="system", content=self.instructions), *messages]
        return [tokenize(chat_prompt(messages))]

    def length(self) -> int | None:
        return self.max_output_tokens


class EmbeddingRequest(Request):
    input: Prompt
    encoding_format: str = "float"


class TokenizeRequest(Request):
    prompt: str | None = None
    messages: list[Message] = []
    continue_final_message: bool = False

    def tokens(self) -> list[int]:
        if self.prompt is not None:
            return tokenize(self.prompt)
        return tokenize(chat_prompt(self.messages, self.continue_final_message))


class DetokenizeRequest(Request):
    tokens: list[NonNegativeInt]


def chat_prompt(messages: Sequence[Message], continue_final: bool = False) -> str:
    """The chat template. A final message that is to be continued is left open."""
    lines = [f"{message.role}:{message.text}" for message in messages]
    return "\n".join(lines if continue_final else [*lines, "assistant:"])


def token_lists(prompt: Any) -> list[list[int]]:
    """Token ids of one `Prompt` or of many, each of them a text or ids already."""
    many = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    return [tokenize(one) if isinstance(one, str) else one for one in many]
