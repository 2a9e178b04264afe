"""All errors that duo raises on purpose. Each message tells the reader what to do.

Core code raises these. `server/api/problem.py` turns them into HTTP, the command lines into one line on
standard error.
"""

from __future__ import annotations


class DuoError(Exception):
    """An expected failure. `status`, `type` and `code` suggest an HTTP response in OpenAI's error format."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int | None = None
    ) -> None:
        """Store the message and the faulty field `param`; `code` and `status` replace the class's values."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.more: dict[str, int] = {}  # numbers that llama-server adds to OpenAI's four fields
        self.code = code or self.code
        self.status = status or self.status


class StartupError(DuoError):
    """The process cannot start: bad model file, port in use, unreachable Redis, contradictory settings."""


class UsageError(StartupError):
    """A flag or a command that does not exist, or a flag without its value."""


class BackendError(DuoError):
    """The model failed while computing (a C call returned an error)."""


class LostModelError(DuoError):
    """The model no longer responds: the process ends (503 with Retry-After)."""

    status = 503
    retry_after_s = 5  # a restart takes seconds to minutes; half: one retry more; twice: a late retry


class LostLenderError(LostModelError):
    """A lender was lost, and with it a part of the model."""

    def __init__(self, lenders: str) -> None:
        super().__init__(f"the lender {lenders} is gone: start duo lend there again, then this lead")


class InvalidRequestError(DuoError):
    """The client's request cannot be honoured as it stands (400)."""

    status = 400
    type = "invalid_request_error"


class FieldError(InvalidRequestError):
    """A field of the request cannot be honoured."""

    def __init__(self, param: str, why: str) -> None:
        super().__init__(f"{param}: {why}", param=param)


class UnsupportedFieldError(FieldError):
    """A field of the request that this server does not support."""

    code = "unsupported_parameter"

    def __init__(self, param: str, why: str = "not supported by this server") -> None:
        super().__init__(param, why)


class ContextOverflowError(InvalidRequestError):
    """The prompt does not fit the model's context (400). The type is llama-server's, the code OpenAI's.

    n_prompt is the prompt's number of tokens, or a lower bound if `estimated`; `param` is its field's name.
    """

    type = "exceed_context_size_error"
    code = "context_length_exceeded"

    def __init__(
        self, n_prompt: int, n_ctx: int, *, param: str = "messages", estimated: bool = False
    ) -> None:
        super().__init__(
            f"This model's maximum context length is {n_ctx} tokens. However, your {param} resulted in "
            f"{'at least ' if estimated else ''}{n_prompt} tokens, which exceeds the available context size. "
            f"Please reduce the length of the {param}.",
            param=param,
        )
        self.more = {"n_prompt_tokens": n_prompt, "n_ctx": n_ctx}


class NotFoundError(InvalidRequestError):
    """Unknown route or model (404)."""

    status = 404


class AccessError(InvalidRequestError):
    """No API key, or an unknown one (401, `invalid_api_key`)."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class ForeignPageError(InvalidRequestError):
    """A request from a web page that this server does not admit (403)."""

    status = 403
    type = "permission_error"
    code = "foreign_page"


class NotSupportedError(DuoError):
    """The server was not started with the options that this request needs (501)."""

    status = 501
    type = "not_supported_error"


class TimeLimitError(DuoError):
    """The request took longer than this server allows (504); clients should not try again."""

    status = 504
    code = "request_timeout"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the request has taken longer than {seconds:g} s, which is all that it may take here"
        )


class UnreadError(InvalidRequestError):
    """The client does not read its reply, which therefore ends (408)."""

    status = 408

    def __init__(self, n_unread: int) -> None:
        super().__init__(f"the reply was ended: {n_unread} parts of it were not read")


class BusyError(DuoError):
    """The queue is full or the server is draining (429 or 503 with Retry-After)."""

    status = 429
    type = "rate_limit_error"
    retry_after_s = 1

    def __init__(self, message: str, *, draining: bool = False) -> None:
        super().__init__(message)
        if draining:
            self.status, self.type = 503, "server_error"


class StoreError(DuoError):
    """The store of replies does not answer (503 with Retry-After), or a reply is too large for it (413)."""

    status = 503
    retry_after_s = 5  # an outage of Redis lasts seconds to minutes, as a restart does

    @classmethod
    def unreachable(cls) -> StoreError:
        return cls("the store of replies does not answer: try again later")

    @classmethod
    def full(cls) -> StoreError:
        return cls("this is more than one API key may store here", status=413)


class OtherEventsError(DuoError):
    """A reader has got events that were never stored, and that differ from the events of this log."""

    def __init__(self) -> None:
        super().__init__("the events up to this one were never stored: read the reply from its beginning")


class LostReplyError(DuoError):
    """The log of a reply breaks off: the process that wrote it is gone."""

    def __init__(self) -> None:
        super().__init__("the server that wrote this reply has ended, and no other server continues it")
