"""Operations that read and write texts."""

from __future__ import annotations

from server.api.contract.operation import EMBEDDING_WORK, TEXT_WORK, WORK, Operation

OF_TEXTS: dict[str, Operation] = {
    "POST /v1/chat/completions": Operation(
        id="createChatCompletion",
        summary="The next reply of a conversation, whole or as a stream of chunks.",
        body="ChatRequest",
        answer=(
            "The completion; with `stream: true` server-sent events, each `data: ` and a "
            "chunk, at the end `data: [DONE]`. A comment is sent every 15 s. If the reply "
            "fails in the middle, an event with an Error is the last one and `[DONE]` does "
            "not follow."
        ),
        answers=("ChatCompletion",),
        event="ChatCompletionChunk",
    ),
    "POST /v1/chat/completions/input_tokens": Operation(
        id="countChatTokens",
        summary="How many tokens the prompt of a chat completion has.",
        body="ChatRequest",
        answer="The number.",
        answers=("InputTokens",),
    ),
    "POST /completion": Operation(
        id="createNativeCompletion",
        summary="A text goes on, in llama-server's own form.",
        body="NativeRequest",
        answer=(
            "An object for each reply, several in a list in the order of the prompts; with "
            "`stream: true` server-sent events, each `data: ` and a part of a reply, or, with "
            "`stop` true, its end. There is no `[DONE]`."
        ),
        answers=("NativeReply",),
        event="NativeChunk",
    ),
    "POST /infill": Operation(
        id="infill",
        summary=(
            "What stands between two texts, in llama-server's form; from models that were trained for it."
        ),
        body="InfillRequest",
        answer=(
            "An object for each reply, several in a list in the order of the prompts; with "
            "`stream: true` server-sent events, each `data: ` and a part of a reply, or, with "
            "`stop` true, its end. There is no `[DONE]`."
        ),
        answers=("NativeReply",),
        event="NativeChunk",
        errors=(*WORK, 501),
    ),
    "POST /completions": Operation(
        id="createNativeCompletions",
        summary="The same as /completion, as in llama-server.",
        body="NativeRequest",
        answer=(
            "An object for each reply, several in a list in the order of the prompts; with "
            "`stream: true` server-sent events, each `data: ` and a part of a reply, or, with "
            "`stop` true, its end. There is no `[DONE]`."
        ),
        answers=("NativeReply",),
        event="NativeChunk",
    ),
    "POST /v1/completions": Operation(
        id="createCompletion",
        summary="A text goes on, whole or as a stream of chunks. OpenAI's legacy route.",
        body="CompletionRequest",
        answer="The completion; with `stream: true` server-sent events as of a chat completion.",
        answers=("Completion",),
        event="CompletionChunk",
    ),
    "POST /v1/responses": Operation(
        id="createResponse",
        summary="The next reply of a conversation that the server may remember. OpenAI's Responses API.",
        description=(
            "A chat completion in other words. Built-in tools and prompts kept by the server are "
            "refused by name. Stored responses are kept for a day and up to a limit for each API key: "
            "in memory, or over restarts in the Redis of `--redis`."
        ),
        body="ResponseRequest",
        answer=(
            "The response; with `stream: true` server-sent events, each `event: ` with its "
            "type and `data: `. The last one is response.completed, response.incomplete (also if it was "
            "cancelled) or response.failed; there is no `[DONE]`. A comment is sent every 15 s. With "
            "`background: true` the response is queued, and a stream can be read again by its id."
        ),
        answers=("Response",),
        event="ResponseEvent",
    ),
    "POST /v1/responses/input_tokens": Operation(
        id="countResponseTokens",
        summary="How many tokens the prompt of a response has.",
        body="ResponseRequest",
        answer="The number.",
        answers=("InputTokens",),
    ),
    "POST /v1/messages": Operation(
        id="createMessage",
        summary="The next reply of a conversation. Anthropic's Messages API.",
        description=(
            "A chat completion in other words. Images, documents, tools that Anthropic "
            "carries out, containers and MCP servers are refused by name."
        ),
        body="MessagesRequest",
        answer=(
            "The message; with `stream: true` server-sent events, each `event: ` with its "
            "type and `data: `. The last one is message_stop, or error. A ping is sent every "
            "15 s."
        ),
        answers=("AssistantMessage",),
        event="MessagesEvent",
    ),
    "POST /v1/messages/count_tokens": Operation(
        id="countTokens",
        summary=(
            "How many tokens the prompt of a message with this body has, the chat template's own included."
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
                    "description": "Only if the request has it.",
                    "additionalProperties": False,
                    "required": ["original_input_tokens"],
                    "properties": {"original_input_tokens": {"type": "integer", "minimum": 0}},
                },
            },
        },
    ),
    "POST /v1/precompute": Operation(
        id="precompute",
        summary="Evaluate a conversation that is still being typed, while there is nothing else to do.",
        description=(
            "For whoever knows what will be asked, or its beginning: the last message may be "
            "unfinished. Nothing is generated; what was evaluated is reused by the next "
            "request that begins alike. It answers when that is done, or as soon as another "
            "request needs the model. A client that closes the connection ends it."
        ),
        body="ChatRequest",
        answer="Done, or given up.",
        answers=("Precompute",),
    ),
    "POST /v1/embeddings": Operation(
        id="createEmbeddings",
        summary="Vectors of texts, of length 1 each.",
        description=(
            "For a server started with `--embeddings`, or with `--embedding-model FILE`; "
            "another one answers 501. Inputs are embedded on a thread of their own, so "
            "replies go on meanwhile."
        ),
        body="EmbeddingRequest",
        answer="A vector for each input, in their order.",
        answers=("EmbeddingList", "NativeEmbeddings"),
        errors=EMBEDDING_WORK,
    ),
    "POST /embedding": Operation(
        id="createNativeEmbeddings",
        summary="The same as /v1/embeddings, told as llama-server does.",
        body="EmbeddingRequest",
        answer="A list with one vector for each input, in their order.",
        answers=("NativeEmbeddings",),
        errors=EMBEDDING_WORK,
    ),
    "POST /v1/rerank": Operation(
        id="rerank",
        summary="How well documents answer a query, the best first.",
        description=(
            "For a server started with `--rerank-model FILE`, or whose own model ranks "
            "(`--reranking`); another one answers 501. In Jina's form, or in TEI's where "
            "there are `texts`, as llama-server has it."
        ),
        body="RerankRequest",
        answer="A score for each document, or for the best top_n of them.",
        answers=("Reranked",),
        errors=EMBEDDING_WORK,
    ),
    "POST /v1/reranking": Operation(
        id="reranking",
        summary="The same as /v1/rerank, as in llama-server.",
        body="RerankRequest",
        answer="A score for each document, or for the best top_n of them.",
        answers=("Reranked",),
        errors=EMBEDDING_WORK,
    ),
    "POST /v1/tokenize": Operation(
        id="tokenize",
        summary="The tokens of a text, as llama-server tells them.",
        body="TokenizeRequest",
        answer="The tokens, with pieces if they were asked for.",
        answers=("Tokenized",),
        errors=TEXT_WORK,
    ),
    "POST /v1/detokenize": Operation(
        id="detokenize",
        summary="The text of tokens, as llama-server tells it.",
        body="DetokenizeRequest",
        answer="The text, control tokens written out, and U+FFFD where the tokens are no text.",
        answers=("Detokenized",),
        errors=TEXT_WORK,
    ),
    "POST /v1/apply-template": Operation(
        id="applyTemplate",
        summary="The prompt that a chat completion with the same body has. Nothing is generated.",
        body="ChatRequest",
        answer="The prompt.",
        answers=("AppliedTemplate",),
    ),
    "POST /v1/responses/compact": Operation(
        id="compactResponse",
        summary="A shorter conversation, what the user said and a summary of the rest by the model.",
        body="CompactRequest",
        answer="Items with which the conversation goes on.",
        answers=("Compacted",),
    ),
    "POST /v1/decisions": Operation(
        id="decide",
        summary="Probabilities of the answers to questions about a conversation. OpenAI's beta.",
        description=(
            "Each question costs one prompt, and all share its beginning: the options stand in it "
            "with labels, and the model's next token tells the probabilities of the labels, among "
            "which they sum to 1."
        ),
        body="DecisionRequest",
        answer="The answers, in the order of the questions.",
        answers=("Decision",),
    ),
    "POST /v1/systemone": Operation(
        id="decideState",
        summary="The same, in llama-server's form.",
        body="StateRequest",
        answer="The answers, by the ids of the questions.",
        answers=("StateDecision",),
    ),
}
