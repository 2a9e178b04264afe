"""Operations that read and write texts."""

from __future__ import annotations

from server.api.contract.operation import EMBEDDING_WORK, TEXT_WORK, WORK, Operation

NATIVE_ANSWER = (
    "An object for each reply; several replies are a list in the order of the prompts. With `stream: true` "
    "server-sent events: each is `data: ` and a part of a reply, or the reply's end, whose `stop` is true. "
    "There is no `[DONE]`."
)

OF_TEXTS: dict[str, Operation] = {
    "POST /v1/chat/completions": Operation(
        id="createChatCompletion",
        summary="The next reply of a conversation, whole or as a stream of chunks.",
        body="ChatRequest",
        answer=(
            "The completion; with `stream: true` server-sent events: each is `data: ` and a "
            "chunk, the last one `data: [DONE]`. A comment is sent every 15 s. If the reply "
            "fails in the middle, the last event is an Error instead of `[DONE]`."
        ),
        answers=("ChatCompletion",),
        event="ChatCompletionChunk",
    ),
    "POST /v1/chat/completions/input_tokens": Operation(
        id="countChatTokens",
        summary="The number of tokens in the prompt of a chat completion.",
        body="ChatRequest",
        answer="The number.",
        answers=("InputTokens",),
    ),
    "POST /completion": Operation(
        id="createNativeCompletion",
        summary="Continue a text, in llama-server's own format.",
        body="NativeRequest",
        answer=NATIVE_ANSWER,
        answers=("NativeReply",),
        event="NativeChunk",
    ),
    "POST /infill": Operation(
        id="infill",
        summary="The text between two texts, in llama-server's format, by models trained for it.",
        body="InfillRequest",
        answer=NATIVE_ANSWER,
        answers=("NativeReply",),
        event="NativeChunk",
        errors=(*WORK, 501),
    ),
    "POST /completions": Operation(
        id="createNativeCompletions",
        summary="Equal to /completion, as in llama-server.",
        body="NativeRequest",
        answer=NATIVE_ANSWER,
        answers=("NativeReply",),
        event="NativeChunk",
    ),
    "POST /v1/completions": Operation(
        id="createCompletion",
        summary="Continue a text, whole or as a stream of chunks (OpenAI's legacy route).",
        body="CompletionRequest",
        answer="The completion; with `stream: true` server-sent events as for a chat completion.",
        answers=("Completion",),
        event="CompletionChunk",
    ),
    "POST /v1/responses": Operation(
        id="createResponse",
        summary="The next reply of a conversation that the server may store (OpenAI's Responses API).",
        description=(
            "A chat completion in another format. Built-in tools and stored prompts are refused by "
            "name. Stored responses are kept for a day, up to a limit for each API key: in memory, or "
            "across restarts in the Redis of `--redis`."
        ),
        body="ResponseRequest",
        answer=(
            "The response; with `stream: true` server-sent events, each with its type as `event: ` "
            "and with `data: `. The last event is response.completed, response.incomplete (also if it was "
            "cancelled) or response.failed; there is no `[DONE]`. A comment is sent every 15 s. With "
            "`background: true` the response is queued, and a stream can be read again by its id."
        ),
        answers=("Response",),
        event="ResponseEvent",
    ),
    "POST /v1/responses/input_tokens": Operation(
        id="countResponseTokens",
        summary="The number of tokens in the prompt of a response.",
        body="ResponseRequest",
        answer="The number.",
        answers=("InputTokens",),
    ),
    "POST /v1/messages": Operation(
        id="createMessage",
        summary="The next reply of a conversation (Anthropic's Messages API).",
        description=(
            "A chat completion in another format. Images, documents, tools that Anthropic "
            "carries out, containers and MCP servers are refused by name."
        ),
        body="MessagesRequest",
        answer=(
            "The message; with `stream: true` server-sent events, each with its type as "
            "`event: ` and with `data: `. The last event is message_stop or error. A ping is "
            "sent every 15 s."
        ),
        answers=("AssistantMessage",),
        event="MessagesEvent",
    ),
    "POST /v1/messages/count_tokens": Operation(
        id="countTokens",
        summary=(
            "The number of tokens in the prompt of a message with this body, including the chat template's."
        ),
        body="MessagesRequest",
        answer="The number.",
        answers={
            "type": "object",
            "additionalProperties": False,
            "required": ["input_tokens"],
            "properties": {
                "input_tokens": {"type": "integer", "minimum": 0},
                "context_management": {
                    "type": "object",
                    "description": "Only if the request has this field.",
                    "additionalProperties": False,
                    "required": ["original_input_tokens"],
                    "properties": {"original_input_tokens": {"type": "integer", "minimum": 0}},
                },
            },
        },
    ),
    "POST /v1/precompute": Operation(
        id="precompute",
        summary="Evaluate a conversation that is still being typed, while the server is idle.",
        description=(
            "For clients that know the next request or its beginning: the last message may be "
            "unfinished. Nothing is generated; the next request with an equal beginning reuses "
            "the evaluated tokens. It answers when all is evaluated, or as soon as another "
            "request needs the model. A client that closes the connection ends the evaluation."
        ),
        body="ChatRequest",
        answer="Whether the evaluation was completed.",
        answers=("Precompute",),
    ),
    "POST /v1/embeddings": Operation(
        id="createEmbeddings",
        summary="Embedding vectors of texts, each of length 1.",
        description=(
            "For a server started with `--embeddings`, or with `--embedding-model FILE`; "
            "other servers answer 501. Inputs are embedded on a separate thread, so replies "
            "continue meanwhile."
        ),
        body="EmbeddingRequest",
        answer="A vector for each input, in the order of the inputs.",
        answers=("EmbeddingList", "NativeEmbeddings"),
        errors=EMBEDDING_WORK,
    ),
    "POST /embedding": Operation(
        id="createNativeEmbeddings",
        summary="Equal to /v1/embeddings, in llama-server's format.",
        body="EmbeddingRequest",
        answer="For each input a list with one vector, in the order of the inputs.",
        answers=("NativeEmbeddings",),
        errors=EMBEDDING_WORK,
    ),
    "POST /v1/rerank": Operation(
        id="rerank",
        summary="Scores of how well documents answer a query, best first.",
        description=(
            "For a server started with `--rerank-model FILE`, or whose own model ranks "
            "(`--reranking`); other servers answer 501. In Jina's format, or in TEI's format if "
            "the request has `texts`, as in llama-server."
        ),
        body="RerankRequest",
        answer="A score for each document, or for the best top_n of them.",
        answers=("Reranked",),
        errors=EMBEDDING_WORK,
    ),
    "POST /v1/reranking": Operation(
        id="reranking",
        summary="Equal to /v1/rerank, as in llama-server.",
        body="RerankRequest",
        answer="A score for each document, or for the best top_n of them.",
        answers=("Reranked",),
        errors=EMBEDDING_WORK,
    ),
    "POST /v1/tokenize": Operation(
        id="tokenize",
        summary="The tokens of a text, in llama-server's format.",
        body="TokenizeRequest",
        answer="The tokens, with their texts if requested.",
        answers=("Tokenized",),
        errors=TEXT_WORK,
    ),
    "POST /v1/detokenize": Operation(
        id="detokenize",
        summary="The text of tokens, in llama-server's format.",
        body="DetokenizeRequest",
        answer="The text, with control tokens written out, and U+FFFD for invalid UTF-8.",
        answers=("Detokenized",),
        errors=TEXT_WORK,
    ),
    "POST /v1/apply-template": Operation(
        id="applyTemplate",
        summary="The prompt of a chat completion with this body. Nothing is generated.",
        body="ChatRequest",
        answer="The prompt.",
        answers=("AppliedTemplate",),
    ),
    "POST /v1/responses/compact": Operation(
        id="compactResponse",
        summary="A shorter conversation: the user's messages, and the model's summary of the rest.",
        body="CompactRequest",
        answer="Items with which the conversation continues.",
        answers=("Compacted",),
    ),
    "POST /v1/decisions": Operation(
        id="decide",
        summary="Probabilities of the answers to questions about a conversation (OpenAI's beta).",
        description=(
            "Each question is one prompt that lists the options with labels; all prompts share "
            "their beginning. The probabilities of the labels are those of the model's next token, "
            "scaled to sum to 1."
        ),
        body="DecisionRequest",
        answer="The answers, in the order of the questions.",
        answers=("Decision",),
    ),
    "POST /v1/systemone": Operation(
        id="decideState",
        summary="Equal to /v1/decisions, in llama-server's format.",
        body="StateRequest",
        answer="The answers, by the ids of the questions.",
        answers=("StateDecision",),
    ),
}
